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
from flyweight.ops.base import Ops, Part
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.ops.operands import Weight, Weights
from flyweight.spec import SlotPlan, Source, WeightPlan
from flyweight.validation.untrusted import shown
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.formats import FORMATS, Rows
from flyweight.weights.formats.values import to_f32
from flyweight.weights.packed.shelf import PackedWeightCache, UncachedWeights
from flyweight.wire import F32, I64

PART_BYTES = 2 << 20  # canonical rows in flight; parsed in cache, five times as fast as 16 MiB
RAW_BYTES = 4 << 20  # the same for unparsed blocks: threads meet at the end of every part
TILE = 16  # kernels pack this many rows together, so parts begin where a tile does
NAMED = 5
CODED = ("i8", "e4m3", "e5m2", "e8m0", "f4")
ALONE = ("_order", "_static")  # ends kinds of weights that have something of their own for all rows

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring sources of a slot that are of one kind: one packed weight, of `columns` of their
    columns, from `column` on.
    """

    sources: list[Source]
    kind: str
    columns: int
    column: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return sum(source.out for source in self.sources), self.columns


def load(
    checkpoint: Checkpoint,
    plan: WeightPlan,
    ops: Ops,
    progress: Progress | None = None,
    shelf: PackedWeightCache | None = None,
) -> dict[str, Weights | F32]:
    """Slot name to weight. A matrix whose sources differ in kind is a tuple of weights, in order
    along N; a vector is float32. `progress` gets (bytes read, bytes in all); matrices the `shelf`
    has are not read. Raises `CheckpointError`.
    """
    check(checkpoint, plan)
    return load_slots(checkpoint, plan.slots, ops, progress, shelf)


def load_slots(
    checkpoint: Checkpoint,
    slots: Sequence[SlotPlan],
    ops: Ops,
    progress: Progress | None = None,
    shelf: PackedWeightCache | None = None,
) -> dict[str, Weights | F32]:
    """The same for some slots of a plan that was checked."""
    kept = shelf or UncachedWeights()
    meter = _Meter(_count_file_bytes(checkpoint, slots), progress)
    loaded: dict[str, Weights | F32] = {}
    for slot in slots:
        if slot.kind == "vector":
            loaded[slot.name] = _read_vector(checkpoint, slot, meter)
            continue
        runs = [_pack(checkpoint, run, ops, meter, kept) for run in _split_runs(checkpoint, slot)]
        loaded[slot.name] = runs[0] if len(runs) == 1 else tuple(runs)
    return loaded


def read_matrix(checkpoint: Checkpoint, slot: SlotPlan) -> F32:
    """A matrix slot as float32 [N, K], quantised sources dequantised."""
    found = np.empty(slot.shape, np.float32)
    for first, rows in iterate_rows(checkpoint, slot):
        found[first : first + len(rows)] = rows
    return found


def iterate_rows(checkpoint: Checkpoint, slot: SlotPlan) -> Iterator[tuple[int, F32]]:
    """The same in parts of a few MiB: number of the first row, and rows."""
    row = 0
    for run in _split_runs(checkpoint, slot):
        for part in _read_parts(checkpoint, run, _Meter(0, None), False):
            assert not isinstance(part, BlockRows), "read in canonical form"
            rows = part.dequantize() if isinstance(part, GroupedWeight) else to_f32(part)
            yield row, rows
            row += len(rows)


def read_bias(checkpoint: Checkpoint, slot: SlotPlan) -> F32 | None:
    """The biases of a matrix slot [N]; None where no source has one."""
    return _read_bias(checkpoint, _Run(list(slot.sources), "", slot.shape[1]))


def read_vector(checkpoint: Checkpoint, slot: SlotPlan) -> F32:
    """A vector slot, flat."""
    return _read_vector(checkpoint, slot, _Meter(0, None))


def list_slot_kinds(
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
            found[slot.name] = [
                (run.shape, FORMATS[run.kind].packed) for run in _split_runs(checkpoint, slot)
            ]
    return found


def check(checkpoint: Checkpoint, plan: WeightPlan) -> None:
    """Holds the file's tensors to the plan: none missing, none left over, every shape and kind as
    expected.
    """
    for misfit in find_misfits(checkpoint, plan):
        raise CheckpointError(f"{checkpoint.path}: {misfit}")


def find_misfits(checkpoint: Checkpoint, plan: WeightPlan) -> Iterator[str]:
    """Every way in which the file's tensors are not the plan's."""
    expected = _list_expected(plan)
    missing = {name: None for name in expected if name not in checkpoint.tensors}
    if missing:
        yield _list([*missing], "missing")
    extra = [
        name
        for name in checkpoint.tensors
        if name not in expected
        and not any(fnmatchcase(name, known) for known in plan.ignored)
        and not _is_empty_bias(checkpoint, name)
    ]
    if extra:
        yield _list(extra, "not used by this model")
    floats = _list_floats(plan)
    for name, shape in expected.items():
        if name in missing:
            continue
        info = checkpoint.tensors[name]
        if info.shape != shape:
            yield f"tensor {shown(name)} has shape {list(info.shape)}, expected {list(shape)}"
        if info.kind == "u8":
            yield f"tensor {shown(name)} holds bytes, which are no weights by themselves"
        elif info.kind in CODED:
            method = checkpoint.quantisation
            yield (
                f"tensor {shown(name)} is {info.kind}, codes without a meaning: "
                + (f"{method}, the quant_method of quantization_config, has no such matrices"
                   if method else "config.json has no quantization_config for it")
            )  # fmt: skip
        elif info.kind not in FORMATS:
            yield (
                f"tensor {shown(name)} is {info.kind}; f32, f16 or bf16 expected: make it float() "
                "and save it again"
            )
        elif name in floats and FORMATS[info.kind].quantised:
            yield f"vector {shown(name)} is {info.kind}; f32, f16 or bf16 expected"


def _is_empty_bias(checkpoint: Checkpoint, name: str) -> bool:
    """A bias of zeros, which writers of quantised files give matrices that have none."""
    info = checkpoint.tensors[name]
    if not checkpoint.quantisation or not name.endswith(".bias"):
        return False
    if len(info.shape) != 1 or info.kind not in FORMATS:
        return False
    return not _read_elements(checkpoint, name, 0, info.shape[0]).any()


def _list_expected(plan: WeightPlan) -> dict[str, tuple[int, ...]]:
    """Every tensor the plan reads, with its shape."""
    found: dict[str, tuple[int, ...]] = {}
    for slot in plan.slots:
        for source in slot.sources:
            found[source.tensor] = source.shape
            if source.bias:
                found[source.bias] = source.bias_shape
    return found


def _list_floats(plan: WeightPlan) -> set[str]:
    """Tensors that must not be quantised: vectors and biases."""
    found = {source.bias for slot in plan.slots for source in slot.sources}
    vectors = (slot for slot in plan.slots if slot.kind == "vector")
    return found | {source.tensor for slot in vectors for source in slot.sources}


def _list(names: Sequence[str], what: str) -> str:
    some = ", ".join(map(shown, names[:NAMED]))
    more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} tensor{'s are' if len(names) > 1 else ' is'} {what}: {some}{more}"


def _split_runs(checkpoint: Checkpoint, slot: SlotPlan) -> list[_Run]:
    """A slot's sources, cut where the kind changes: a packed weight is of one kind."""
    runs: list[_Run] = []
    for source in slot.sources:
        kind = checkpoint.tensors[source.tensor].kind
        if source.transposed and FORMATS[kind].quantised:
            kind = "f32"  # what a quantised matrix is once its columns are its rows
        if runs and runs[-1].kind == kind and not kind.endswith(ALONE):
            runs[-1].sources.append(source)
        else:
            runs.append(_Run([source], kind, slot.shape[1], slot.column))
    return runs


def _pack(
    checkpoint: Checkpoint, run: _Run, ops: Ops, meter: "_Meter", shelf: PackedWeightCache
) -> Weight:
    bias = _read_bias(checkpoint, run)
    weight = shelf.take(bias)
    if weight is not None:
        for source in run.sources:
            meter.add(_count_source_bytes(checkpoint, source))
        return weight
    as_they_lie = run.kind in ops.block_kinds and checkpoint.format == "gguf"
    weight = ops.pack(run.shape, _read_parts(checkpoint, run, meter, as_they_lie), bias)
    shelf.put(weight)
    return weight


def _read_parts(
    checkpoint: Checkpoint, run: _Run, meter: "_Meter", as_they_lie: bool
) -> Iterator[Part]:
    """Row ranges, in order along N: canonical and about PART_BYTES, or blocks `as_they_lie`."""
    for source in run.sources:
        form = FORMATS[checkpoint.tensors[source.tensor].kind]
        whole = int(np.lcm(len(source.order) or 1, TILE))
        most, cell = (RAW_BYTES, form.nbytes) if as_they_lie else (PART_BYTES, form.canonical)
        count = int(most / (source.shape[-1] / form.block * cell))
        count = source.rows if source.transposed else max(count // whole * whole, whole)
        for start in range(0, source.rows, count):
            stop = min(start + count, source.rows)
            first, last = source.start + start, source.start + stop
            rows: Part
            if as_they_lie:
                rows = checkpoint.read_blocks(source.tensor, first, last)
            else:
                rows = _read(checkpoint, source, first, last)
            count_out = source.out if source.transposed else stop - start
            if source.order:
                rows = _reorder_rows(rows, make_row_order(count_out, source.order))
            yield _take_columns(rows, run)
            meter.add(form.count_bytes((stop - start, source.shape[-1])))


def _read(checkpoint: Checkpoint, source: Source, first: int, last: int) -> Rows:
    rows = checkpoint.read(source.tensor, first, last)
    if not source.transposed:
        return rows
    dense = rows.dequantize() if isinstance(rows, GroupedWeight) else rows
    first, count = source.outputs or (0, source.out)
    return np.ascontiguousarray(dense[:, first : first + count].T)


def make_row_order(rows: int, order: tuple[int, ...]) -> I64:
    """Which row goes where when every len(order) rows are put in that order."""
    first = np.arange(0, rows, len(order), dtype=np.int64)[:, None]
    found: I64 = (first + np.array(order)).reshape(-1)
    return found


def _take_columns(rows: Part, run: _Run) -> Part:
    """The columns of a run; all of them, unless ranks share the matrix along K."""
    if rows.shape[1] == run.columns:
        return rows
    if isinstance(rows, GroupedWeight | BlockRows):
        return rows.take_columns(run.column, run.columns)
    return np.ascontiguousarray(rows[:, run.column : run.column + run.columns])


def _reorder_rows(rows: Part, order: I64) -> Part:
    return rows.take(order) if isinstance(rows, GroupedWeight | BlockRows) else rows[order]


def _read_bias(checkpoint: Checkpoint, run: _Run) -> F32 | None:
    """The biases side by side [N]; zeros for a source without one; none when no source has one."""
    if not any(source.bias for source in run.sources):
        return None
    parts = []
    for source in run.sources:
        if not source.bias:
            parts.append(np.zeros(source.out, np.float32))
            continue
        first = source.start
        if source.transposed:
            columns = source.outputs[0] if source.outputs else 0
            first = source.start // source.shape[-2] * source.shape[-1] + columns
        values = _read_elements(checkpoint, source.bias, first, source.out)
        parts.append(values[make_row_order(len(values), source.order)] if source.order else values)
    return np.concatenate(parts)


def _read_vector(checkpoint: Checkpoint, slot: SlotPlan, meter: "_Meter") -> F32:
    parts = []
    for source in slot.sources:
        row = source.shape[-1] if len(source.shape) > 1 else 1
        first, count = source.start * row, source.rows * row
        values = _read_elements(checkpoint, source.tensor, first, count)
        parts.append(values[make_row_order(len(values), source.order)] if source.order else values)
        meter.add(_count_source_bytes(checkpoint, source))
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return values + np.float32(slot.plus) if slot.plus else values


def _read_elements(checkpoint: Checkpoint, name: str, start: int, count: int) -> F32:
    """Elements [start, start+count) of a tensor that is not a matrix of weights."""
    shape = checkpoint.tensors[name].shape
    row = shape[-1] if len(shape) > 1 else 1
    values = checkpoint.read(name, start // row, -(-(start + count) // row))
    assert not isinstance(values, GroupedWeight), name  # `check` refused it
    return to_f32(values).reshape(-1)[start % row :][:count]


def _count_file_bytes(checkpoint: Checkpoint, slots: Sequence[SlotPlan]) -> int:
    return sum(_count_source_bytes(checkpoint, s) for slot in slots for s in slot.sources)


def _count_source_bytes(checkpoint: Checkpoint, source: Source) -> int:
    shape = (source.rows, source.shape[-1]) if len(source.shape) > 1 else (source.rows,)
    return FORMATS[checkpoint.tensors[source.tensor].kind].count_bytes(shape)


class _Meter:
    """Bytes read so far; says so after every part."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)
