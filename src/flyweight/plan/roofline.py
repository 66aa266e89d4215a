"""The least time a step can take: every op at its own limit, arithmetic or memory, whichever binds.

Invariant: counts what the model requires, never what our kernels do: bytes are the file's, K/V of a
block that sequences share is read once, and only rows whose logits are wanted meet the head.  Knows
no engine: a step is how many tokens each sequence computes, and what it sees.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flyweight.ops.base import choose_rounding
from flyweight.spec import (
    KV_TYPES,
    KVType,
    LayerSpec,
    ModelSpec,
    RouteSpec,
    SlotPlan,
    Source,
    WeightPlan,
)
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.formats import FORMATS

LAYER = re.compile(r"layers\.(\d+)\.")
EXPERT = re.compile(r"layers\.\d+\.(up|down)\.\d+$")  # one expert of a mixture
UNITS = ("int8", "bf16", "f32")  # what is multiplied, and so whose peak counts


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """A machine's limits: bytes read a second, and operations a second by what is multiplied."""

    read: float
    int8: float
    bf16: float
    f32: float

    def get_peak(self, unit: str) -> float:
        return {"int8": self.int8, "bf16": self.bf16, "f32": self.f32}[unit]


@dataclass(frozen=True, slots=True)
class OpCost:
    """`operations` on `unit`, and the bytes that must be read for them."""

    operations: float
    nbytes: float
    unit: str

    def compute_seconds(self, limits: MachineLimits) -> float:
        return max(self.operations / limits.get_peak(self.unit), self.nbytes / limits.read)


@dataclass(frozen=True, slots=True)
class Matrix:
    """N x K weights that take `nbytes` in the file.  A token meets them with the probability
    `share`: below 1 for one expert of a mixture.  The `head` meets only rows with logits.
    """

    rows: int
    columns: int
    nbytes: int
    unit: str
    share: float = 1.0
    head: bool = False

    def make_op(self, tokens: int) -> OpCost:
        """Experts are taken to be chosen evenly: so many of them are read, in expectation."""
        met = 1 - (1 - self.share) ** tokens if tokens else 0.0
        return OpCost(
            2 * self.rows * self.columns * tokens * self.share, self.nbytes * met, self.unit
        )


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step: `chunks` are (tokens computed, positions seen in the end) of each sequence, `rows`
    how many logits are wanted, `distinct` the positions of K/V there are without those shared.
    """

    chunks: tuple[tuple[int, int], ...]
    rows: int
    distinct: int

    @property
    def tokens(self) -> int:
        return sum(count for count, _ in self.chunks)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model requires of any step: its matrices and attentions, with their counts."""

    matrices: tuple[tuple[Matrix, int], ...]
    layers: tuple[tuple[LayerSpec, int], ...]
    kv_type: KVType

    def list_ops(self, seen: StepShape) -> list[OpCost]:
        """Every op of a step that counts; norms, rotation and sampling are taken to be free."""
        found = [make_attention_cost(layer, seen, self.kv_type, n) for layer, n in self.layers]
        for matrix, n in self.matrices:
            op = matrix.make_op(seen.rows if matrix.head else seen.tokens)
            found += [op] * n
        return found


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of steps, added up, and the least seconds they could take."""

    operations: float = 0.0
    nbytes: float = 0.0
    seconds: float = 0.0


def make_attention_cost(
    layer: LayerSpec, seen: StepShape, kv_type: KVType, layers: int = 1
) -> OpCost:
    """Scores and mixtures of one layer, or of `layers` alike, in bf16 as the roofline counts."""
    window, chunk = layer.kv.window or 1 << 62, layer.kv.chunk
    if chunk:
        pairs = sum(
            count_chunk_pairs(chunk, context) - count_chunk_pairs(chunk, context - n)
            for n, context in seen.chunks
        )
        reach = sum(context - (context - n) // chunk * chunk for n, context in seen.chunks if n)
    else:
        pairs = sum(count_pairs(count, context, window) for count, context in seen.chunks)
        reach = sum(min(context, window + count - 1) for count, context in seen.chunks)
    width = layer.kv.k_dim + layer.kv.v_dim
    nbytes = min(reach, seen.distinct) * kv_type.count_bytes(layer.kv)
    return OpCost(2.0 * pairs * layer.heads * width * layers, float(nbytes * layers), "bf16")


def count_pairs(count: int, context: int, window: int) -> int:
    """Pairs (query, key) of the last `count` of `context` positions, a query seeing itself and
    what is before it within the window.
    """
    first = context - count + 1  # keys the first query sees
    grows = max(0, min(context, window) - first + 1)  # queries that see all there is
    return grows * (first + first + grows - 1) // 2 + (count - grows) * window


def count_chunk_pairs(chunk: int, context: int) -> int:
    """Pairs (query, key) of all `context` positions, a query seeing its own chunk up to itself."""
    whole, rest = divmod(context, chunk)
    return (whole * chunk * (chunk + 1) + rest * (rest + 1)) // 2


def sum_work(shape: Shape, steps: Iterable[StepShape], limits: MachineLimits) -> StepWork:
    """Adds up what steps require; equal steps are counted once."""
    operations = nbytes = seconds = 0.0
    for seen, times in Counter(steps).items():
        for op in shape.list_ops(seen):
            operations += times * op.operations
            nbytes += times * op.nbytes
            seconds += times * op.compute_seconds(limits)
    return StepWork(operations, nbytes, seconds)


def make_shape(
    checkpoint: Checkpoint, plan: WeightPlan, spec: ModelSpec, activations: str, kv_dtype: str
) -> Shape:
    """The shape of a model as its file holds it, multiplied with `activations`."""
    slots = list_slot_matrices(checkpoint, plan, spec, activations)
    matrices = Counter(m for parts in slots.values() for m in parts)
    layers = Counter(spec.layers)
    return Shape(tuple(matrices.items()), tuple(layers.items()), KV_TYPES[kv_dtype])


def list_slot_matrices(
    checkpoint: Checkpoint, plan: WeightPlan, spec: ModelSpec, activations: str
) -> dict[str, list[Matrix]]:
    """The products that each slot takes part in."""
    kinds = {name: info.kind for name, info in checkpoint.tensors.items()}
    return {slot.name: _list_matrices(slot, spec, kinds, activations) for slot in plan.slots}


def _list_matrices(
    slot: SlotPlan, spec: ModelSpec, kinds: Mapping[str, str], activations: str
) -> list[Matrix]:
    """A slot as the products it takes part in: none for vectors and for a table that is only
    looked up, one for each kind of weight otherwise.
    """
    head = slot.name == "head" or (slot.name == "embed" and spec.tie)
    if slot.kind == "vector" or (slot.kind == "embed" and not head):
        return []
    by_kind: dict[str, list[Source]] = {}
    for source in slot.sources:
        by_kind.setdefault(kinds[source.tensor], []).append(source)
    share = compute_share(slot.name, spec)
    return [
        Matrix(
            rows=sum(source.out for source in sources),
            columns=slot.shape[1],
            nbytes=_count_bytes(kind, sources),
            unit=choose_rounding(activations, kind),
            share=share,
            head=head,
        )
        for kind, sources in by_kind.items()
    ]


def _count_bytes(kind: str, sources: Sequence[Source]) -> int:
    return sum(FORMATS[kind].count_bytes((s.rows, s.shape[-1])) for s in sources)


def compute_share(slot: str, spec: ModelSpec) -> float:
    """With what probability a token meets a slot's matrix."""
    found = LAYER.match(slot)
    route: RouteSpec | None = None
    if found and EXPERT.match(slot):
        moe = spec.layers[int(found[1])].moe
        route = moe.route if moe else None
    return route.top / route.experts if route else 1.0
