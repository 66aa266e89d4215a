"""The loader: a weight plan and a checkpoint to the backend's weights, a range of rows at a time.

Invariant: every tensor of the file is used, or known to be unused, and every slot is filled, or
nothing is loaded and the error names them; no whole matrix is ever held in canonical form. Knows no
container and no kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.base import Ops, Weight, Weights
from flyweight.ops.grouped import GroupedWeight
from flyweight.spec import SlotPlan, WeightPlan
from flyweight.untrusted import shown
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.formats import FORMATS, Rows
from flyweight.weights.formats.dense import to_f32
from flyweight.wire import F32, I64

PART_BYTES = 2 << 20  # canonical rows in flight; parsed in cache, five times as fast as 16 MiB
TILE = 16  # kernels pack this many rows together, so parts begin where a tile does
NAMED = 5

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Source:
    """One tensor of a slot.  `heads` is not 0 where rows must leave the interleaved rope order."""

    name: str
    rows: int
    columns: int
    kind: str
    heads: int
    bias: str


def load(
    checkpoint: Checkpoint, plan: WeightPlan, ops: Ops, progress: Progress | None = None
) -> dict[str, Weights | F32]:
    """Slot name to weight. A matrix whose sources differ in kind is a tuple of weights, in order
    along N; a vector is float32. `progress` hears (bytes read, bytes in all). Raises
    `CheckpointError`.
    """
    check(checkpoint, plan)
    meter = _Meter(_file_bytes(checkpoint, plan), progress)
    loaded: dict[str, Weights | F32] = {}
    for slot in plan.slots:
        if slot.kind == "vector":
            loaded[slot.name] = _vector(checkpoint, slot.sources[0])
            meter.add(FORMATS[checkpoint.tensors[slot.sources[0]].kind].bytes_for(slot.shape))
            continue
        runs = [_pack(checkpoint, run, ops, meter) for run in _runs(checkpoint, slot)]
        loaded[slot.name] = runs[0] if len(runs) == 1 else tuple(runs)
    return loaded


def slot_kinds(
    checkpoint: Checkpoint, plan: WeightPlan
) -> dict[str, list[tuple[tuple[int, ...], str]]]:
    """What `load` will make of each slot, for the memory plan: (shape, packed kind) of every
    weight. Reads no tensor.
    """
    check(checkpoint, plan)
    found: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for slot in plan.slots:
        if slot.kind == "vector":
            found[slot.name] = [(slot.shape, "f32")]
        else:
            runs = _runs(checkpoint, slot)
            found[slot.name] = [
                ((_total(run), run[0].columns), FORMATS[run[0].kind].packed) for run in runs
            ]
    return found


def check(checkpoint: Checkpoint, plan: WeightPlan) -> None:
    """Holds the file's tensors to the plan: none missing, none left over, every shape and kind as
    expected.
    """
    expected = _expected(plan)
    missing = [name for name in expected if name not in checkpoint.tensors]
    if missing:
        raise CheckpointError(f"{checkpoint.path}: {_list(missing)} missing")
    extra = [
        name
        for name in checkpoint.tensors
        if name not in expected and not any(fnmatchcase(name, known) for known in plan.ignored)
    ]
    if extra:
        raise CheckpointError(f"{checkpoint.path}: {_list(extra)} not used by this model")
    for name, shape in expected.items():
        info = checkpoint.tensors[name]
        if info.shape != shape:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {shown(name)} has shape {list(info.shape)}, "
                f"expected {list(shape)}"
            )
        if len(shape) == 1 and FORMATS[info.kind].quantised:
            raise CheckpointError(
                f"{checkpoint.path}: vector {shown(name)} is {info.kind}; f32, f16 or bf16 expected"
            )


def _expected(plan: WeightPlan) -> dict[str, tuple[int, ...]]:
    """Every tensor the plan reads, with its shape."""
    found: dict[str, tuple[int, ...]] = {}
    for slot in plan.slots:
        for i, source in enumerate(slot.sources):
            found[source] = (slot.rows[i] if slot.rows else slot.shape[0], *slot.shape[1:])
        for i, bias in enumerate(slot.bias):
            if bias:
                found[bias] = (slot.rows[i] if slot.rows else slot.shape[0],)
    return found


def _list(names: Sequence[str]) -> str:
    some = ", ".join(map(shown, names[:NAMED]))
    more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} tensor{'s are' if len(names) > 1 else ' is'} ({some}{more})"


def _runs(checkpoint: Checkpoint, slot: SlotPlan) -> list[list[_Source]]:
    """A slot's sources, cut where the kind changes: a packed weight is of one kind."""
    runs: list[list[_Source]] = []
    for i, name in enumerate(slot.sources):
        heads = slot.permute[i] if slot.permute and checkpoint.interleaved_rope else 0
        rows = slot.rows[i] if slot.rows else slot.shape[0]
        bias = slot.bias[i] if slot.bias else ""
        source = _Source(name, rows, slot.shape[1], checkpoint.tensors[name].kind, heads, bias)
        if runs and runs[-1][0].kind == source.kind:
            runs[-1].append(source)
        else:
            runs.append([source])
    return runs


def _pack(checkpoint: Checkpoint, run: list[_Source], ops: Ops, meter: "_Meter") -> Weight:
    shape = (_total(run), run[0].columns)
    return ops.pack(shape, _parts(checkpoint, run, meter), _bias(checkpoint, run))


def _parts(checkpoint: Checkpoint, run: list[_Source], meter: "_Meter") -> Iterator[Rows]:
    """Canonical row ranges of about PART_BYTES, in order along N."""
    for source in run:
        form = FORMATS[source.kind]
        head = source.rows // source.heads if source.heads else 1
        whole = np.lcm(head, TILE)
        count = int(PART_BYTES / (source.columns / form.block * form.canonical)) // whole * whole
        count = int(max(count, whole))
        for start in range(0, source.rows, count):
            stop = min(start + count, source.rows)
            rows = checkpoint.read(source.name, start, stop)
            yield _turned(rows, _half_split(stop - start, head)) if source.heads else rows
            meter.add(form.bytes_for((stop - start, source.columns)))


def _half_split(rows: int, head: int) -> I64:
    """Where each row of the half-split order lies in the interleaved one: element i + j * head/2 of
    a head is the interleaved row 2 i + j.
    """
    return np.arange(rows).reshape(-1, head // 2, 2).swapaxes(1, 2).reshape(-1)


def _turned(rows: Rows, order: I64) -> Rows:
    return rows.take(order) if isinstance(rows, GroupedWeight) else rows[order]


def _bias(checkpoint: Checkpoint, run: list[_Source]) -> F32 | None:
    """The biases side by side [N]; zeros for a source without one; none when no source has one."""
    if not any(source.bias for source in run):
        return None
    parts = []
    for source in run:
        values = (
            _vector(checkpoint, source.bias) if source.bias else np.zeros(source.rows, np.float32)
        )
        if source.bias and source.heads:
            values = values[_half_split(source.rows, source.rows // source.heads)]
        parts.append(values)
    return np.concatenate(parts)


def _vector(checkpoint: Checkpoint, name: str) -> F32:
    values = checkpoint.read(name, 0, checkpoint.tensors[name].shape[0])
    assert not isinstance(values, GroupedWeight), name  # `check` refused it
    return to_f32(values)


def _total(run: list[_Source]) -> int:
    return sum(source.rows for source in run)


def _file_bytes(checkpoint: Checkpoint, plan: WeightPlan) -> int:
    infos = [checkpoint.tensors[name] for slot in plan.slots for name in slot.sources]
    return sum(FORMATS[info.kind].bytes_for(info.shape) for info in infos)


class _Meter:
    """Bytes read so far; says so after every part."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)
