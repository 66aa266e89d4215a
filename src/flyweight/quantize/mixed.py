"""Mixed precision: types of the matrices of a GGUF file, for a budget of bytes or of divergence.

Invariant: the file with its header is at most as large as the budget; a limit on the divergence is
met by the choice as a whole, measured on the calibration's windows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from flyweight.describe import ModelDescription
from flyweight.errors import ConfigError
from flyweight.ops.base import Ops
from flyweight.quantize.allocation import Allocation, allocate, allocate_cost
from flyweight.quantize.ggml.container import make_value
from flyweight.quantize.output.gguf import GgufTarget
from flyweight.quantize.sensitivity import Report, SensitivityRun
from flyweight.quantize.tensors import TensorRows
from flyweight.wire import I32

WIDE = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0")  # of rows in blocks of 256
NARROW = ("q4_0", "iq4_nl", "q5_0", "q5_1", "q8_0")  # of rows in blocks of 32
WINDOW, LEAST, MOST = 256, 512, 2048  # tokens of a window, and of all that are judged
WORK = 200e9  # weights times tokens of one evaluation, about
TRIES = 5
PASSPORT = 4096  # bytes that a passport may add to the header
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class MixedBudget:
    """At most `size` bytes of the file, or a divergence of at most `divergence`."""

    size: int | None
    divergence: float | None


@dataclass(frozen=True, slots=True)
class MixedChoice:
    """The types, and their divergence as a whole, measured."""

    allocation: Allocation
    divergence: float

    def describe(self) -> str:
        """In a line."""
        return (
            f"mean KLD {self.divergence:.4g} on the calibration "
            f"({self.allocation.cost:.4g} predicted; at most {100 * self.allocation.gap:.2g} % "
            "above the best choice)"
        )


def choose_mixed(
    found: ModelDescription,
    target: GgufTarget,
    windows: I32,
    budget: MixedBudget,
    tools: tuple[Ops, Report],
) -> MixedChoice:
    """Measures every matrix in every type, and chooses.  `target` has the file's layout, whose
    types do not matter.  Raises `ConfigError` for a budget that nothing meets.
    """
    ops, report = tools
    tensors = list_matrices(target)
    overhead = count_overhead(target, tensors)
    if budget.size is not None and budget.size <= overhead:
        raise ConfigError(
            "is less than the file needs apart from matrices", "target_size", value=budget.size,
            hint=f"{overhead} bytes",
        )  # fmt: skip
    run = SensitivityRun(found, cut_sample(found, windows), target.assignment.rows, ops)
    candidates = {name: list_types(piece.shape[-1]) for name, piece in tensors.items()}
    costs = run.measure(candidates, report)
    if budget.size is not None:
        chosen = allocate(costs, budget.size - overhead)
        return MixedChoice(chosen, run.measure_types(chosen.types))
    assert budget.divergence is not None
    limit = budget.divergence
    for _ in range(TRIES):
        chosen = allocate_cost(costs, limit)
        measured = run.measure_types(chosen.types)
        if measured <= budget.divergence:
            break
        limit *= 0.98 * budget.divergence / measured
    if measured > budget.divergence:
        raise ConfigError(
            "is not met by any choice that was tried", "max_kld", value=budget.divergence,
            hint=f"nearest valid: {measured:.4g}",
        )  # fmt: skip
    return MixedChoice(chosen, measured)


def list_matrices(target: GgufTarget) -> dict[str, TensorRows]:
    """The tensors whose types are chosen: matrices that a recipe quantises."""
    return {
        piece.tensor: piece
        for pieces in target.assignment.rows.values()
        for piece in pieces
        if target.assignment.precision[piece.tensor].quantised
    }


def list_types(columns: int) -> tuple[str, ...]:
    """The candidates for rows of so many columns."""
    return WIDE if columns % 256 == 0 else NARROW if columns % 32 == 0 else ("f16",)


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
