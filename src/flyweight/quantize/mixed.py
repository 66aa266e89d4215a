"""Mixed precision: types of the matrices of a GGUF file, for a budget of bytes or of divergence.

Invariant: the file with its header is at most as large as the budget; a limit on the divergence is
met by the choice as a whole, measured on the calibration's windows.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from pathlib import Path

from flyweight import __version__
from flyweight.describe import ModelDescription
from flyweight.errors import ConfigError
from flyweight.ops.base import Ops
from flyweight.plan.file_size import list_types
from flyweight.plan.memory import format_size
from flyweight.quantize.allocation import Allocation, Costs, allocate, allocate_cost
from flyweight.quantize.costs import CostMeter, Report, TypeCost
from flyweight.quantize.estimate import estimate_choice
from flyweight.quantize.ggml.container import make_value
from flyweight.quantize.measurements import Key, open_measurements
from flyweight.quantize.output.gguf import GgufTarget
from flyweight.quantize.sensitivity import SensitivityRun
from flyweight.quantize.tensors import TensorRows
from flyweight.weights.formats import FORMATS
from flyweight.wire import I32

WINDOW, LEAST, MOST = 256, 512, 2048  # tokens of a window, and of all that are judged
WORK = 200e9  # weights times tokens of one evaluation, about
TRIES = 5
PASSES = 2  # at most, that improve a choice
PASSPORT = 4096  # bytes that a passport may add to the header
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class MixedBudget:
    """At most `size` bytes of the file, or a divergence of at most `divergence`."""

    size: int | None
    divergence: float | None


@dataclass(frozen=True, slots=True)
class MixedChoice:
    """The types, and their divergence as a whole, measured; `first` is the choice by the costs of
    single matrices, which was improved.
    """

    types: Mapping[str, str]
    divergence: float
    first: Allocation

    def describe(self) -> str:
        """In a line."""
        gap = 100 * self.first.gap
        near = f"at most {gap:.2g} % above the best sum" if gap >= 0.01 else "the best sum"
        return (
            f"mean KLD {self.divergence:.4g} on the calibration (the first choice, "
            f"{self.first.cost:.4g} predicted, is {near})"
        )


@dataclass(frozen=True, slots=True)
class ChoiceTools:
    """What a choice is made with: measurements are kept in the folder `work`, if any; `note` gets
    what users should know before it starts, `report` its progress.
    """

    make_ops: Callable[[], Ops]
    size: int  # bytes of a weight in memory
    report: Report
    note: Callable[[str], None]
    work: Path | None = None


def choose_mixed(
    found: ModelDescription,
    target: GgufTarget,
    windows: I32,
    budget: MixedBudget,
    tools: ChoiceTools,
) -> MixedChoice:
    """Measures every matrix in every type, and chooses.  `target` has the file's layout, whose
    types do not matter.  Raises `ConfigError` for a budget that nothing meets.
    """
    tensors = list_matrices(target)
    overhead = count_overhead(target, tensors)
    if budget.size is not None:
        check_size(budget.size, overhead + count_least(tensors))
    room = None if budget.size is None else budget.size - overhead
    inner = MixedBudget(room, budget.divergence)
    sample, rows = cut_sample(found, windows), target.assignment.rows
    none: dict[Key, float] = {}
    job = identify_sample(found, target, sample)
    with open_measurements(tools.work, job) if tools.work else nullcontext(none) as known:
        if len(known):
            tools.note(f"found {len(known)} measurements of an interrupted choice of types")

        def start() -> SensitivityRun:
            peak = estimate_choice(found, sample, tools.size)
            tools.note(f"choosing types needs {format_size(peak)} of memory at the peak")
            return SensitivityRun(found, sample, rows, tools.make_ops())

        return choose_within(CostMeter(start, rows, known), tensors, inner, tools.report)


def choose_within(
    meter: CostMeter, tensors: Mapping[str, TensorRows], budget: MixedBudget, report: Report
) -> MixedChoice:
    """The choice for `budget`, that of the matrices."""
    costs = meter.measure({name: list_types(p.shape[-1]) for name, p in tensors.items()}, report)
    if budget.size is not None:
        chosen = allocate(costs, budget.size)
        first = MixedChoice(chosen.types, meter.apply(chosen.types), chosen)
    else:
        assert budget.divergence is not None
        first = find_smallest(meter, costs, budget.divergence)
    return improve(meter, first, budget, costs, report)


def identify_sample(found: ModelDescription, target: GgufTarget, sample: I32) -> str:
    """A hash of all that decides what is measured: neither the budget nor the method is."""
    words = (__version__, found.checkpoint.fingerprint, target.assignment.rows)
    return sha256(repr(words).encode() + sample.tobytes()).hexdigest()[:32]


def check_size(size: int, least: int) -> None:
    """Raises `ConfigError` before anything is measured."""
    if size < least:
        raise ConfigError(
            "is less than the file needs with its smallest types", "target_size", value=size,
            hint=f"nearest valid: {least} bytes",
        )  # fmt: skip


def count_least(tensors: Mapping[str, TensorRows]) -> int:
    """Bytes of the matrices in the smallest of their types."""
    return sum(
        min(FORMATS[kind].count_bytes(piece.shape) for kind in list_types(piece.shape[-1]))
        for piece in tensors.values()
    )


def find_smallest(meter: CostMeter, costs: Costs, limit: float) -> MixedChoice:
    """A small choice whose divergence is at most `limit`.  Raises `ConfigError`."""
    wanted = limit
    for _ in range(TRIES):
        chosen = allocate_cost(costs, wanted)
        measured = meter.apply(chosen.types)
        if measured <= limit:
            return MixedChoice(chosen.types, measured, chosen)
        wanted *= 0.98 * limit / measured
    raise ConfigError(
        "is not met by any choice that was tried", "max_kld", value=limit,
        hint=f"nearest valid: {measured:.4g}",
    )  # fmt: skip


def improve(
    meter: CostMeter, chosen: MixedChoice, budget: MixedBudget, costs: Costs, report: Report
) -> MixedChoice:
    """Costs of single matrices do not add up: those of the types next to the chosen ones are
    measured again, with all others quantised, and a better choice by them is taken as often as it
    is measured to be one.  `budget` is that of the matrices; the model has the types of `chosen`.
    """
    for _ in range(PASSES):
        near = measure_near(meter, chosen, costs, report)
        if budget.size is not None:
            new = allocate(near, budget.size)
        else:
            assert budget.divergence is not None
            new = allocate_cost(near, budget.divergence - chosen.divergence)
        if new.types == chosen.types:
            break
        measured = meter.apply(new.types)
        if budget.size is not None:
            better = measured < chosen.divergence
        else:
            smaller = new.nbytes < count_bytes(chosen.types, costs)
            better = smaller and measured <= (budget.divergence or 0)
        if not better:
            break
        chosen = MixedChoice(new.types, measured, chosen.first)
    return chosen


def measure_near(
    meter: CostMeter, chosen: MixedChoice, costs: Costs, report: Report
) -> dict[str, list[TypeCost]]:
    """What each matrix adds to the divergence of the choice in the next smaller and the next larger
    type.
    """
    near, own = {}, {}
    for name, kind in chosen.types.items():
        kinds = [one.kind for one in costs[name]]
        i = kinds.index(kind)
        own[name] = costs[name][i]
        near[name] = [one for one in kinds[max(0, i - 1) : i + 2] if one != kind]
    return {
        name: [replace(own[name], divergence=0.0)]
        + [replace(one, divergence=one.divergence - chosen.divergence) for one in found]
        for name, found in meter.measure(near, report).items()
    }


def count_bytes(types: Mapping[str, str], costs: Costs) -> int:
    """Of all matrices in their types."""
    return sum(one.nbytes for name in types for one in costs[name] if one.kind == types[name])


def list_matrices(target: GgufTarget) -> dict[str, TensorRows]:
    """The tensors whose types are chosen: matrices that a recipe quantises."""
    return {
        piece.tensor: piece
        for pieces in target.assignment.rows.values()
        for piece in pieces
        if target.assignment.precision[piece.tensor].quantised
    }


def count_overhead(target: GgufTarget, tensors: Mapping[str, TensorRows]) -> int:
    """Bytes of the file apart from the matrices, at most."""
    entries = target.assignment.entries
    kept = sum(entry.nbytes for entry in entries if entry.name not in tensors)
    kept += sum(4 * values.size for values in target.constants.values())
    head = sum(16 + len(key.encode()) + len(make_value(v)) for key, v in target.metadata.items())
    head += sum(64 + len(entry.name.encode()) + 8 * len(entry.shape) for entry in entries)
    return kept + head + ALIGNMENT * (len(entries) + 2) + PASSPORT


def cut_sample(found: ModelDescription, windows: I32) -> I32:
    """The windows that matrices are judged on: fewer for larger models."""
    weights = sum(prod(slot.shape) for slot in found.plan.slots if len(slot.shape) == 2)
    tokens = int(min(MOST, max(LEAST, WORK / weights)))
    length = min(WINDOW, windows.shape[1])
    return windows[: max(1, tokens // length), :length].copy()
