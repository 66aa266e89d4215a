"""docs/ops.md, op by op, for every backend: native against the reference, and rows against batches.

Bounds are the page's.  `native` tests compare with `ReferenceOps`; `make` tests run all backends,
the reference too, and ask that a row keeps its bits whatever else is in the call.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from op_cases import (
    DENSE,
    EPS,
    GROUPED,
    OPENED,
    Make,
    Paged,
    ids,
    normal,
    opens_to_bf16,
    paged,
    part,
    pieces,
    poisoned,
    reach,
    still,
    within,
)

from flyweight.errors import CheckpointError
from flyweight.ops.base import ACTIVATIONS, Array, Ops, choose_rounding
from flyweight.ops.grouped import GroupedWeight, count_block
from flyweight.ops.operands import HeadNorm, Weight
from flyweight.ops.reference import ReferenceOps, ReferenceWeight
from flyweight.ops.reference_math import round_rows, round_static
from flyweight.spec import KVGroup
from flyweight.wire import F32, Batch

ROWS = (1, 2, 3, 5, 8, 16, 17, 33, 70)
FEW_ROWS = (1, 5, 17, 33)  # of `scalar`, which takes most of the time; all in .ci/full
SHAPES = {  # (N, K): tile edges at 16 rows, group edges at 32 and 256
    "f32": [(1, 1), (15, 33), (16, 32), (172, 64), (37, 300)],
    "f16": [(1, 1), (15, 33), (16, 32), (172, 64), (37, 300)],
    "bf16": [(1, 1), (15, 33), (16, 32), (172, 64), (37, 300)],
}
SHAPES |= {
    kind: [(1, 256), (16, 256), (172, 512)]
    if count_block(kind) > 32
    else [(1, 32), (16, 64), (172, 96), (33, 512)]
    for kind in GROUPED
}
CASES = [(kind, n, k) for kind, shapes in SHAPES.items() for n, k in shapes]
HEADS = [(1, 1, 8), (4, 4, 16), (4, 2, 24), (6, 1, 64), (7, 1, 32), (16, 8, 128), (14, 2, 80)]
STEPS = [  # (computed, count) of each sequence; blocks of 8 and 16, splits of the context beyond
    [(0, 1)],
    [(0, 5)],
    [(7, 1)],
    [(15, 2), (16, 1), (3, 0), (0, 16)],
    [(31, 3), (0, 17), (40, 1), (5, 3), (300, 1)],
    [(127, 1), (128, 1), (129, 2), (255, 2), (256, 1)],
    [(511, 1), (512, 1), (513, 2), (1030, 7)],
]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


# --- weights ---


@pytest.mark.parametrize(("kind", "n", "k"), CASES)
def test_embed_gives_the_dequantised_rows(
    native: Make, rng: np.random.Generator, kind: str, n: int, k: int
) -> None:
    parts = pieces(rng, kind, n, k)
    ops, ref = native(), ReferenceOps()
    rows = np.array([n - 1, 0, *rng.integers(0, n, 5)], np.int32)
    got, w = _embed(ops, parts, n, k, rows)
    want, _ = _embed(ref, parts, n, k, rows)
    within(got, want, 0 if kind in DENSE else 4 * EPS * np.abs(want))
    assert w.shape == (n, k) and w.kind == kind
    assert w.nbytes == ops.count_packed_bytes((n, k), kind)


def _embed(
    ops: Ops, parts: list[GroupedWeight | Array], n: int, k: int, rows: Array
) -> tuple[F32, Weight]:
    w = ops.pack((n, k), iter(parts))
    return ops.embed(w, rows), w


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize(("kind", "n", "k"), CASES)
def test_linear(native: Make, kind: str, n: int, k: int, mode: str, at_length: bool) -> None:
    ops, (parts, bias, requested) = native(mode), linear_cases(kind, n, k, mode)
    mine, bare = ops.pack((n, k), parts, bias), ops.pack((n, k), parts)
    counts = FEW_ROWS if is_slow(ops) and not at_length else ROWS
    error = (16 + 2 * np.sqrt(k)) * EPS
    if opens_to_bf16(ops) and choose_rounding(mode, kind) == "bf16" and kind in GROUPED:
        error += OPENED
    for x, want, mass in requested:
        if len(x) not in counts:
            continue
        bound = error * mass
        kept = x.copy()
        got = ops.linear(x, mine)
        within(got, want, bound)
        assert (x == kept).all()
        within(ops.linear(x, bare) + bias, got, 2 * EPS * (np.abs(got) + np.abs(bias)))


def is_slow(ops: Ops) -> bool:
    return getattr(ops, "isa", "") == "scalar"


@cache
def linear_cases(
    kind: str, n: int, k: int, mode: str
) -> tuple[list[GroupedWeight | Array], F32, list[tuple[F32, F32, Array]]]:
    """A weight's parts and bias, and inputs with the reference's result and what its bound is a
    part of: computed once, not once per instruction set.
    """
    rng, ref = np.random.default_rng(11), ReferenceOps(mode)
    parts, bias = pieces(rng, kind, n, k), normal(rng, n)
    truth, requested = ref.pack((n, k), parts, bias), []
    for rows in ROWS:
        x = normal(rng, rows, k) * np.float32(10) ** rng.integers(-3, 3, (rows, 1))
        x[:, : k // 2][rng.random(rows) < 0.2] = 0  # whole groups of nothing
        x = x.astype(np.float32)
        mass = sum_sizes(seen_by(x, truth, mode), parts, bias)
        requested.append((x, ref.linear(x, truth), mass))
    return parts, bias, requested


def seen_by(x: F32, w: Weight, mode: str) -> Array:
    """x as the reference's `linear` multiplies it, in the order of its own elements."""
    assert isinstance(w, ReferenceWeight)
    order = np.arange(x.shape[1]) if w.columns is None else w.columns
    to = choose_rounding(mode, w.kind)
    static = w.input_scale and to == "int8"
    x = x[:, order]
    rounded = round_static(x, w.input_scale) if static else round_rows(x, to)
    return rounded[:, np.argsort(order)]


def sum_sizes(x: Array, parts: list[GroupedWeight | Array], bias: F32) -> Array:
    """The sums of |w x|, and |bias|."""
    ref = ReferenceOps()
    sizes = []
    for piece in parts:
        w = ref.pack(piece.shape, [piece])
        sizes.append(reach(piece, w.matrix.astype(np.float32)))
    mass: Array = np.abs(x.astype(np.float64)) @ np.concatenate(sizes).T + np.abs(bias)
    return mass


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize("kind", [*DENSE, *GROUPED])
def test_linear_rows_do_not_depend_on_the_call(
    make: Make, rng: np.random.Generator, kind: str, mode: str, at_length: bool
) -> None:
    n, k = 53, 256
    last = 35 if is_slow(make()) and not at_length else 70
    parts = pieces(rng, kind, n, k)
    x = normal(rng, last, k)
    results = []
    for threads in (1, 2, 3):
        ops = make(mode, threads=threads)
        w = ops.pack((n, k), parts)
        whole = ops.linear(x, w)
        for start, end in ((0, 1), (1, 3), (3, 10), (10, 27), (27, last), (last - 1, last)):
            assert (ops.linear(x[start:end], w) == whole[start:end]).all()
        results.append(whole)
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


def test_a_tuple_of_weights_is_side_by_side(make: Make, rng: np.random.Generator) -> None:
    """Parts of different kinds, each with its own rounding of x."""
    ops, x = make("int8"), normal(rng, 9, 256)
    kinds = ((40, "q4_k"), (17, "q6_k"), (8, "f32"))
    some = tuple(ops.pack((n, 256), pieces(rng, kind, n, 256), normal(rng, n)) for n, kind in kinds)
    got = ops.linear(x, some)
    assert (got == np.concatenate([ops.linear(x, w) for w in some], axis=1)).all()
    assert (ops.linear(x[4:5], some) == got[4]).all()


def test_pack_refuses_what_does_not_fit(make: Make, rng: np.random.Generator) -> None:
    ops = make()
    with pytest.raises(CheckpointError):
        ops.pack((4, 32), [part(rng, "f32", 2, 32), part(rng, "q4_0", 2, 32)])
    with pytest.raises(CheckpointError):
        ops.pack((5, 32), [part(rng, "f32", 4, 32)])


# --- rows of the residual stream ---


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 1), (1, 8), (3, 33), (70, 172), (2, 4096)])
def test_norms(native: Make, rng: np.random.Generator, tokens: int, hidden: int) -> None:
    ops, ref = native(), ReferenceOps()
    x, w = normal(rng, tokens, hidden) * 3, normal(rng, hidden)
    x[0] *= 1e-3
    want = ref.norm(x, w, 1e-6)
    within(ops.norm(x, w, 1e-6), want, 16 * EPS * np.abs(want))
    mine, truth = normal(rng, tokens, hidden), np.empty((tokens, hidden), np.float32)
    truth[:] = mine
    kept = x.copy()
    want = ref.add_norm(x, truth, w, 1e-5)
    within(ops.add_norm(x, mine, w, 1e-5), want, 16 * EPS * np.abs(want))
    assert (mine == truth).all() and (x == kept).all()
    ops.add(x, mine)
    assert (mine == truth + x).all()


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "inner"), [(1, 1), (3, 17), (33, 172), (2, 1000)])
def test_act(native: Make, rng: np.random.Generator, kind: str, tokens: int, inner: int) -> None:
    x = normal(rng, tokens, 2 * inner) * np.float32(10) ** rng.integers(-2, 3, (tokens, 1))
    x = x.astype(np.float32)
    gate, up = np.abs(x[:, :inner]), np.abs(x[:, inner:])
    bound = 16 * EPS * gate.astype(np.float64) * up
    within(native().act(x, kind), ReferenceOps().act(x, kind), bound)


def test_rows_keep_their_bits(make: Make, rng: np.random.Generator) -> None:
    ops = make(threads=3)
    x, w, residual = normal(rng, 40, 90), normal(rng, 90), normal(rng, 40, 90)
    sums = residual.copy()
    normed, added = ops.norm(x, w, 1e-5), ops.add_norm(x, sums, w, 1e-5)
    silu = ops.act(x, "silu")
    for t in range(40):
        row, own = x[t : t + 1], residual[t : t + 1].copy()
        assert (ops.norm(row, w, 1e-5) == normed[t]).all()
        assert (ops.add_norm(row, own, w, 1e-5) == added[t]).all() and (own == sums[t]).all()
        assert (ops.act(row, "silu") == silu[t]).all()
    assert (ops.take(x, ids(7, 0, 7)) == x[[7, 0, 7]]).all()
    assert ops.take(x, ids()).shape == (0, 90)


# --- attention ---


@pytest.mark.parametrize("dim", [2, 8, 64, 128])
def test_rotation(native: Make, rng: np.random.Generator, dim: int) -> None:
    positions = ids(0, 1, 2, 511, 4095, 131071, 1000003)
    inv_freq = (500000.0 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)
    for scale in (1.0, 1.1874):
        got = native().rotation(positions, inv_freq, scale)
        want = ReferenceOps().rotation(positions, inv_freq, scale)
        within(got.cos, want.cos, 4 * EPS * scale)
        within(got.sin, want.sin, 4 * EPS * scale)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
def test_rope_store(
    native: Make, rng: np.random.Generator, heads: int, kv_heads: int, dim: int, normed: bool
) -> None:
    """q as it comes back; K by what attention makes of it; V bit for bit."""
    chunks = [(5, 3), (0, 1), (16, 9)]
    pages = paged(rng, chunks, 8)
    whole, group = pages.step([(0, c + n) for c, n in chunks]), KVGroup(kv_heads, dim, dim)
    tokens = len(whole.tokens)
    qkv = normal(rng, tokens, (heads + 2 * kv_heads) * dim)
    inv_freq = (10000.0 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)
    norms = HeadNorm(normal(rng, dim), normal(rng, dim), 1e-6) if normed else None
    stored = []
    for ops in (native(), ReferenceOps()):
        kv = poisoned(ops, group, pages, "f32")
        rope = ReferenceOps().rotation(whole.positions, inv_freq, 1.0)
        q = ops.rope_store(qkv, kv, whole, rope, norms)
        stored.append((q, ops.attend(q, kv, whole, 0.2)))
    (mine, mixed), (truth, want) = stored
    size = np.abs(truth).max(axis=-1, keepdims=True) * 2
    within(mine, truth, (16 if normed else 4) * EPS * size)
    v = qkv[:, -kv_heads * dim :]
    spread = 0.2 * dim * np.abs(truth).max() ** 2 * 2
    within(mixed, want, 128 * EPS * (1 + spread) * np.abs(v).max())
    alone = np.flatnonzero(whole.positions == 0)  # sees itself only: attention gives V back
    heads_of_v = np.repeat(v[alone].reshape(-1, kv_heads, dim), heads // kv_heads, axis=1)
    assert (mixed[alone].reshape(heads_of_v.shape) == heads_of_v).all()


@pytest.mark.parametrize("rotated", [4, 12])
def test_rope_leaves_the_rest_of_the_head(
    native: Make, rng: np.random.Generator, rotated: int
) -> None:
    pages = paged(rng, [(0, 5)], 4)
    batch, dim = pages.step([(0, 5)]), 16
    qkv, rest = normal(rng, 5, 4 * dim), slice(rotated, None)
    inv_freq = normal(rng, rotated // 2)
    results = []
    for ops in (native(), ReferenceOps()):
        kv = ops.make_kv_layer(KVGroup(1, dim, dim), pages.blocks, 4, "f32")
        rope = ReferenceOps().rotation(batch.positions, inv_freq, 1.0)
        results.append(ops.rope_store(qkv, kv, batch, rope, None))
    within(results[0], results[1], 4 * EPS * 2 * np.abs(qkv).max())
    assert (results[0][..., rest] == qkv.reshape(5, 4, dim)[:, :2, rest]).all()


@dataclass(frozen=True)
class Attention:
    """A step over stored positions: `whole` writes them all, `now` asks for some."""

    group: KVGroup
    pages: Paged
    whole: Batch
    now: Batch
    qkv: F32
    q: F32

    def run(self, ops: Ops, dtype: str) -> F32:
        kv, dim = poisoned(ops, self.group, self.pages, dtype), self.group.k_dim
        ops.rope_store(self.qkv, kv, self.whole, still(len(self.qkv), dim // 2), None)
        return ops.attend(self.q, kv, self.now, dim**-0.5)


@cache
def attention(
    step: int, heads: tuple[int, int, int], block: int, dtype: str
) -> tuple[Attention, F32, float]:
    """The case, the reference's answer to it and the bound; the same for every backend."""
    rng, chunks, (many, few, dim) = np.random.default_rng(step), STEPS[step], heads
    pages = paged(rng, chunks, block)
    whole, now = pages.step([(0, c + n) for c, n in chunks]), pages.step(chunks)
    qkv = normal(rng, len(whole.tokens), 3 * few * dim)
    q = normal(rng, len(now.tokens), many, dim) * 2
    case = Attention(KVGroup(few, dim, dim), pages, whole, now, qkv, q)
    k, v = qkv[:, few * dim : 2 * few * dim], qkv[:, 2 * few * dim :]
    spread = dim**-0.5 * np.abs(q).sum(-1).max() * np.abs(k).max()
    return (
        case,
        case.run(ReferenceOps(), dtype),
        64 * EPS * float(1 + spread) * float(np.abs(v).max()),
    )


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("step", range(len(STEPS)))
def test_attend(native: Make, step: int, dtype: str) -> None:
    for heads in HEADS if len(STEPS[step]) < 3 else HEADS[2:6:3]:
        for block in (8, 16):
            case, want, bound = attention(step, heads, block, dtype)
            within(case.run(native(), dtype), want, bound)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_attend_one_token_at_a_time(make: Make, rng: np.random.Generator, dtype: str) -> None:
    """A chunk gives the bits its tokens give alone, in other company, on other threads, blocks."""
    heads, kv_heads, dim, chunks = 4, 2, 16, [(500, 30), (0, 9), (120, 20)]
    qkv = normal(rng, 679, 3 * kv_heads * dim)
    q = normal(rng, 59, heads, dim)
    results = []
    for block, threads in ((16, 1), (16, 3), (32, 2)):
        ops, pages = make(threads=threads), paged(rng, chunks, block)
        whole, now = pages.step([(0, c + n) for c, n in chunks]), pages.step(chunks)
        kv = poisoned(ops, KVGroup(kv_heads, dim, dim), pages, dtype)
        ops.rope_store(qkv, kv, whole, still(679, dim // 2), None)
        out = ops.attend(q, kv, now, 0.25)
        results.append(out)
        for i in range(30):
            one = pages.step([(500 + i, 1), (0, 0), (0, 0)])
            assert (ops.attend(q[i : i + 1], kv, one, 0.25) == out[i]).all()
        tail = pages.step([(500, 0), (4, 5), (120, 20)])
        assert (ops.attend(q[34:], kv, tail, 0.25) == out[34:]).all()
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


def test_move_kv_copies_slots(make: Make, rng: np.random.Generator) -> None:
    ops, pages = make(), paged(rng, [(0, 16), (0, 16)], 8)
    first, second = pages.step([(0, 16), (0, 0)]), pages.step([(0, 0), (0, 16)])
    for dtype in ("f32", "f16", "bf16"):
        kv = poisoned(ops, KVGroup(2, 8, 8), pages, dtype)
        q = ops.rope_store(normal(rng, 16, 6 * 8), kv, first, still(16, 4), None)
        ops.move_kv(kv, first.slots, second.slots)
        assert (ops.attend(q, kv, first, 0.3) == ops.attend(q, kv, second, 0.3)).all()


def test_memory_requested_ahead_changes_nothing(make: Make, rng: np.random.Generator) -> None:
    ops, pages = make(), paged(rng, [(0, 16)], 8)
    batch = pages.step([(0, 16)])
    kv = poisoned(ops, KVGroup(2, 8, 8), pages, "f32")
    q = ops.rope_store(normal(rng, 16, 6 * 8), kv, batch, still(16, 4), None)
    before = ops.attend(q, kv, batch, 0.3)
    ops.populate_kv(kv, 0, pages.blocks)
    assert (ops.attend(q, kv, batch, 0.3) == before).all()


def test_nothing_to_do(make: Make, rng: np.random.Generator) -> None:
    ops, none = make(), np.empty((0, 32), np.float32)
    w = ops.pack((5, 32), [part(rng, "f32", 5, 32)])
    assert ops.linear(none, w).shape == (0, 5)
    assert ops.embed(w, ids()).shape == (0, 32)
    assert ops.norm(none, normal(rng, 32), 1e-5).shape == (0, 32)
    assert ops.act(none, "silu").shape == (0, 16)
