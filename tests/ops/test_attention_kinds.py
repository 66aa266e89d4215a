"""Attention's other kinds: windows, softcaps, sinks, V inside K; all targets and the reference.

A row with a window keeps its bits in any chunk and any company, and nothing outside its window is
read: not K, not V, not the table.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from op_cases import EPS, Make, Paged, normal, paged, poisoned, still

from flyweight.errors import ConfigError
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.operands import HeadNorm, KVLayer
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import KVGroup
from flyweight.wire import F32, Batch

BEST = available_isas()[-1]
DTYPES = ("f32", "f16", "bf16", "pairs")  # the last: bf16, multiplied in pairs
WINDOWS = (1, 2, 15, 16, 17, 63, 64, 65, 100, 511, 512, 513, 600, 5000)
slow_ok = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Kind:
    """How attention scores: what `attend` takes next to q, K and V."""

    window: int = 0
    softcap: float = 0.0
    sinks: F32 | None = None
    chunk: int = 0


@dataclass(frozen=True)
class Case:
    """Random q and K/V for sequences of some contexts, in a pool full of NaN."""

    group: KVGroup
    heads: int
    pages: Paged
    qkv: F32
    q: F32  # of every token
    contexts: tuple[int, ...]

    @property
    def whole(self) -> list[tuple[int, int]]:
        return [(0, c) for c in self.contexts]

    def store(self, ops: Ops, dtype: str) -> KVLayer:
        kv = poisoned(ops, self.group, self.pages, "bf16" if dtype == "pairs" else dtype)
        ops.rope_store(self.qkv, kv, self.pages.step(self.whole), still(len(self.qkv), 0), None)
        return kv

    def rows(self, chunks: list[tuple[int, int]]) -> F32:
        """q of the tokens of a step."""
        begins = np.cumsum([0, *self.contexts])
        picked = [self.q[b + c : b + c + n] for b, (c, n) in zip(begins, chunks, strict=False)]
        return np.concatenate(picked)

    def attend(
        self, ops: Ops, kv: KVLayer, chunks: list[tuple[int, int]], kind: Kind, scale: float = 0.3
    ) -> F32:
        batch = self.pages.step(chunks)
        how = kind.window, kind.softcap, kind.sinks, kind.chunk
        out = ops.attend(self.rows(chunks), kv, batch, scale, *how)
        assert np.isfinite(out).all()
        return out

    def bound(self, dtype: str = "", scale: float = 0.3) -> float:
        """docs/ops.md's."""
        k = self.qkv[:, self.heads * self.group.k_dim :]
        spread = scale * float(np.abs(self.q).sum(-1).max() * np.abs(k).max())
        pairs = 2.0**-8 if dtype == "pairs" else 0.0
        return (64 * EPS * (1 + spread) + pairs) * float(np.abs(k).max())


def mode(dtype: str) -> str:
    """The activations that go with it."""
    return "int8" if dtype == "pairs" else "f32"


def case(
    group: KVGroup, share: int, contexts: tuple[int, ...], block: int = 16, seed: int = 0
) -> Case:
    rng, heads = np.random.default_rng(seed), group.heads * share
    pages = paged(rng, [(0, c) for c in contexts], block)
    qkv = normal(rng, sum(contexts), heads * group.k_dim + group.width)
    q = normal(rng, sum(contexts), heads, group.k_dim) * 0.5
    return Case(group, heads, pages, qkv, q, contexts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [8, 16, 24])
def test_windows_of_every_size(native: Make, dtype: str, block: int) -> None:
    """The last rows of contexts around the window's ends, and every row of a prompt."""
    some = case(KVGroup(2, 16, 16), 2, (40, 130, 700), block)
    chunks = [(0, 40), (120, 10), (690, 10)]
    mine, truth = native(mode(dtype)), ReferenceOps(mode(dtype))
    kv, reference = some.store(mine, dtype), some.store(truth, dtype)
    for window in WINDOWS:
        got = some.attend(mine, kv, chunks, Kind(window))
        want = some.attend(truth, reference, chunks, Kind(window))
        assert np.abs(got - want).max() <= some.bound(dtype)
        got = some.attend(mine, kv, chunks, Kind(chunk=window))
        want = some.attend(truth, reference, chunks, Kind(chunk=window))
        assert np.abs(got - want).max() <= some.bound(dtype)
    everything = some.attend(mine, kv, chunks, Kind())
    assert (some.attend(mine, kv, chunks, Kind(chunk=700)) == everything).all()
    assert (some.attend(mine, kv, chunks, Kind(5000)) == everything).all()
    assert (some.attend(mine, kv, chunks, Kind(700)) == everything).all()


@pytest.mark.parametrize("share", [1, 3, 8])
@pytest.mark.parametrize(
    "kind",
    [
        Kind(softcap=2.0),
        Kind(softcap=50.0, window=20),
        Kind(sinks=np.linspace(-8, 8, 48, dtype=np.float32)),
        Kind(20, 30.0, np.linspace(-3, 12, 48, dtype=np.float32)),
    ],
    ids=["softcap", "softcap+window", "sinks", "all"],
)
def test_softcap_and_sinks(native: Make, kind: Kind, share: int) -> None:
    some = case(KVGroup(2, 32, 24), share, (70, 530))
    own = replace(kind, sinks=None if kind.sinks is None else kind.sinks[: some.heads].copy())
    for dtype in DTYPES:
        mine, truth = native(mode(dtype)), ReferenceOps(mode(dtype))
        chunks = [(0, 70), (510, 20)]
        got = some.attend(mine, some.store(mine, dtype), chunks, own)
        want = some.attend(truth, some.store(truth, dtype), chunks, own)
        assert np.abs(got - want).max() <= some.bound(dtype)


def test_sinks_at_the_ends(native: Make) -> None:
    """-infinity and the least float are no sink, bit for bit; a huge one takes everything."""
    some, ops = case(KVGroup(1, 16, 16), 4, (600,)), native()
    kv, chunks = some.store(ops, "f32"), [(580, 20)]
    plain = some.attend(ops, kv, chunks, Kind()).reshape(20, 4, 16)
    least, most = np.finfo(np.float32).min, np.finfo(np.float32).max
    ends = np.array([-np.inf, least, most, np.inf], np.float32)
    out = some.attend(ops, kv, chunks, Kind(sinks=ends)).reshape(20, 4, 16)
    assert (out[:, :2] == plain[:, :2]).all() and (out[:, 2:] == 0).all()


def test_a_softcap_out_of_reach_changes_little_and_a_tight_one_flattens(native: Make) -> None:
    some, ops = case(KVGroup(1, 16, 16), 2, (100,)), native()
    kv, chunks = some.store(ops, "f32"), [(99, 1)]
    plain = some.attend(ops, kv, chunks, Kind())
    assert np.abs(some.attend(ops, kv, chunks, Kind(softcap=1e6)) - plain).max() <= some.bound()
    v = some.qkv[:, -16:].mean(axis=0)
    flat = some.attend(ops, kv, chunks, Kind(softcap=1e-6)).reshape(2, 16)
    assert np.abs(flat - v).max() < 1e-5


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, Kind, str]:
    v_in_k = draw(st.booleans())
    k_dim = draw(st.sampled_from([2, 8, 32, 48, 64, 80]))
    v_dim = draw(st.sampled_from([d for d in (1, 8, 16, 24, 40, 64) if d <= k_dim or not v_in_k]))
    heads, share = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 7, 8]))
    lengths = st.one_of(st.sampled_from([1, 16, 63, 64, 65, 511, 513, 640]), st.integers(1, 300))
    contexts = tuple(draw(st.lists(lengths, min_size=1, max_size=3)))
    group = KVGroup(heads, k_dim, v_dim, v_in_k=v_in_k)
    block = draw(st.sampled_from([1, 3, 16, 32, 48, 64]))
    some = case(group, share, contexts, block, draw(st.integers(0, 99)))
    window = draw(st.one_of(st.sampled_from((0, *WINDOWS)), st.integers(1, 300)))
    sinks = normal(np.random.default_rng(1), some.heads) * 4 if draw(st.booleans()) else None
    chunk = draw(st.one_of(st.just(0), st.sampled_from(WINDOWS), st.integers(1, 300)))
    kind = Kind(window, draw(st.sampled_from([0.0, 0.7, 30.0])), sinks, chunk)
    return some, kind, draw(st.sampled_from(DTYPES))


@slow_ok
@given(drawn=cases(), data=st.data())
def test_a_row_depends_on_nothing_else(
    native: Make, drawn: tuple[Case, Kind, str], data: st.DataObject
) -> None:
    """Whole prompts == any chunking == one token alone == other threads; near the reference."""
    some, kind, dtype = drawn
    threads, truth = data.draw(st.sampled_from([1, 2, 3, 7])), ReferenceOps(mode(dtype))
    ops = native(mode(dtype), threads)
    kv, contexts = some.store(ops, dtype), some.contexts
    full = np.split(some.attend(ops, kv, some.whole, kind), np.cumsum(contexts)[:-1])
    cuts = [data.draw(st.integers(0, c)) for c in contexts]
    ends = [data.draw(st.integers(cut, c)) for cut, c in zip(cuts, contexts, strict=True)]
    chunks = [(cut, end - cut) for cut, end in zip(cuts, ends, strict=True)]
    if sum(n for _, n in chunks):
        part = some.attend(native(mode(dtype), 3), kv, chunks, kind)
        assert (
            part == np.concatenate([full[s][c : c + n] for s, (c, n) in enumerate(chunks)])
        ).all()
    s = data.draw(st.integers(0, len(contexts) - 1))
    token = data.draw(st.integers(0, contexts[s] - 1))
    alone = [(token, 1) if i == s else (0, 0) for i in range(len(contexts))]
    got = some.attend(native(mode(dtype), 1), kv, alone, kind)
    assert (got == full[s][token]).all()
    want = some.attend(truth, some.store(truth, dtype), alone, kind)
    assert np.abs(got - want).max() <= some.bound(dtype)


@pytest.mark.parametrize("dtype", ["f16", "pairs"])
@pytest.mark.parametrize("window", [3, 64, 600])
def test_a_long_windowed_decode_alone_or_in_company(native: Make, window: int, dtype: str) -> None:
    """Alone it is cut at the splits it sees and merged, next to others not."""
    some = case(KVGroup(2, 16, 16), 2, (2000, 700, 513, 64, 1))
    last, results = [(c - 1, 1) for c in some.contexts], []
    for threads in (1, 2, 7):
        ops = native(mode(dtype), threads)
        kv = some.store(ops, dtype)
        together = some.attend(ops, kv, last, Kind(window))
        for s in range(len(last)):
            alone = [chunk if i == s else (0, 0) for i, chunk in enumerate(last)]
            assert (some.attend(ops, kv, alone, Kind(window)) == together[s]).all()
        results.append(together)
    assert all((other == results[0]).all() for other in results)


@pytest.mark.parametrize("dtype", ["f16", "pairs"])
@pytest.mark.parametrize("chunk", [3, 64, 600])
def test_a_token_sees_its_own_chunk(native: Make, chunk: int, dtype: str) -> None:
    """The chunk alone, laid at the same places of a context, gives the same bits."""
    some = case(KVGroup(1, 16, 16), 4, (1300,))
    for threads in (1, 3):
        ops = native(mode(dtype), threads)
        kv = some.store(ops, dtype)
        rows = [(1, 1), (chunk - 1, 1), (chunk, 1), (1299, 1)]
        for start, count in rows:
            got = some.attend(ops, kv, [(start, count)], Kind(chunk=chunk))
            own = Kind(window=start % chunk + 1)
            assert (got == some.attend(ops, kv, [(start, count)], own)).all()


@pytest.mark.parametrize("dtype", ["f16", "pairs"])
@pytest.mark.parametrize("block", [8, 16, 32])
@pytest.mark.parametrize("v_in_k", [False, True])
def test_what_left_the_window_is_not_read(
    native: Make, block: int, v_in_k: bool, dtype: str
) -> None:
    """Rows before it become NaN, its table entries -1: the same bits."""
    some = case(KVGroup(1, 16, 8, v_in_k=v_in_k), 8, (700,), block)
    ops, chunks, window = native(mode(dtype)), [(650, 50)], 100
    want = some.attend(ops, some.store(ops, dtype), chunks, Kind(window))
    gone = 650 + 1 - window
    kv = some.store(ops, dtype)
    old = some.pages.step([(0, gone)])
    nothing = np.full((gone, some.qkv.shape[1]), np.nan, np.float32)
    ops.rope_store(nothing, kv, old, still(gone, 0), None)
    batch = some.pages.step(chunks)
    tables = batch.tables.copy()
    tables[0, : gone // block] = -1
    got = ops.attend(some.rows(chunks), kv, replace(batch, tables=tables), 0.3, window)
    assert (got == want).all()


def test_all_targets_give_the_same_bits() -> None:
    sinks = np.arange(6, dtype=np.float32)
    for v_in_k in (False, True):
        some = case(KVGroup(2, 48, 40, v_in_k=v_in_k), 3, (600, 40))
        outs = []
        for isa in available_isas():
            ops = CpuOps(2, isa)
            kv = some.store(ops, "f16")
            outs.append(some.attend(ops, kv, [(540, 60), (0, 40)], Kind(90, 5.0, sinks)))
        assert all((out == outs[0]).all() for out in outs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k_dim", "v_dim"), [(576, 512), (40, 40), (24, 7)])
def test_v_inside_k(native: Make, k_dim: int, v_dim: int, dtype: str) -> None:
    """MLA: one KV head, many query heads; the same as V stored next to K, in fewer bytes."""
    for block in (16, 24):
        some = case(KVGroup(1, k_dim, v_dim, v_in_k=True), 20, (90, 150), block)
        chunks, ops, truth = [(58, 12), (145, 5)], native(mode(dtype)), ReferenceOps(mode(dtype))
        kv = some.store(ops, dtype)
        got = some.attend(ops, kv, chunks, Kind(), 0.05)
        want = some.attend(truth, some.store(truth, dtype), chunks, Kind(), 0.05)
        assert np.abs(got - want).max() <= some.bound(dtype, 0.05)
        twice = np.concatenate([some.qkv, some.qkv[:, -v_dim:]], axis=1)
        apart = replace(some, group=KVGroup(1, k_dim, v_dim), qkv=twice)
        beside = apart.store(ops, dtype)
        if dtype != "pairs" or v_dim % 2 == 0:  # else only V next to K can go in pairs
            assert (apart.attend(ops, beside, chunks, Kind(), 0.05) == got).all()
        element = 4 if dtype == "f32" else 2
        slots = some.pages.blocks * block
        assert kv.nbytes == slots * k_dim * element == slots * some.group.width * element
        assert beside.nbytes == slots * (k_dim + v_dim) * element


@pytest.mark.parametrize(
    "group", [KVGroup(2, 12, 5, v_in_k=True), KVGroup(2, 12, 6, v_in_k=True), KVGroup(2, 12, 5)]
)
@pytest.mark.parametrize("activations", ["f32", "bf16"])
def test_moving_slots(native: Make, group: KVGroup, activations: str) -> None:
    some, ops = case(group, 2, (32, 32)), native(activations)
    kv = some.store(ops, "bf16")
    batch = some.pages.step([(0, 32), (0, 32)])
    ops.move_kv(kv, batch.slots[:32], batch.slots[32:])
    q = some.rows([(0, 32), (0, 0)])
    first, second = some.pages.step([(0, 32), (0, 0)]), some.pages.step([(0, 0), (0, 32)])
    assert (ops.attend(q, kv, first, 0.3) == ops.attend(q, kv, second, 0.3)).all()


@pytest.mark.parametrize("whole", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (6, 1, 20), (32, 8, 128)])
def test_norms_over_all_heads(
    native: Make, heads: int, kv_heads: int, dim: int, whole: tuple[bool, bool]
) -> None:
    """OLMo 2: one RMS for a token's whole q, one for its k; alone or among others the same."""
    rng, group = np.random.default_rng(dim), KVGroup(kv_heads, dim, 8)
    pages = paged(rng, [(0, 9)], 16)
    batch = pages.step([(0, 9)])
    qkv = normal(rng, 9, heads * dim + group.width)
    qkv *= np.float32(10) ** rng.integers(-2, 3, (9, 1)).astype(np.float32)
    q_size, k_size = dim * (heads if whole[0] else 1), dim * (kv_heads if whole[1] else 1)
    norms = HeadNorm(normal(rng, q_size), normal(rng, k_size), 1e-6)
    rope = ReferenceOps().rotation(batch.positions, normal(rng, dim // 2), 1.0)
    outs = []
    for ops in (native(), ReferenceOps()):
        kv = poisoned(ops, group, pages, "f32")
        q = ops.rope_store(qkv, kv, batch, rope, norms)
        outs.append((q, ops.attend(np.ones_like(q), kv, batch, 0.01)))
    (mine, mixed), (truth, want) = outs
    assert np.abs(mine - truth).max() <= 16 * EPS * 2 * np.abs(truth).max()
    spread = 0.01 * dim * 2 * float(np.abs(norms.k).max()) * np.sqrt(group.heads * dim)
    assert np.abs(mixed - want).max() <= 128 * EPS * (1 + spread) * np.abs(qkv).max()
    ops = native()
    kv = poisoned(ops, group, pages, "f32")
    one = replace(batch, slots=batch.slots[4:5], positions=batch.positions[4:5])
    own = type(rope)(rope.cos[4:5], rope.sin[4:5])
    assert (ops.rope_store(qkv[4:5], kv, one, own, norms)[0] == mine[4]).all()


def test_a_layer_without_positions(native: Make) -> None:
    """No rotated pairs: q comes back as it went in, K is stored as it came."""
    some, ops = case(KVGroup(2, 24, 10), 2, (30,)), native()
    kv, batch = some.store(ops, "f32"), some.pages.step([(0, 30)])
    q = ops.rope_store(some.qkv, kv, batch, still(30, 0), None)
    assert (q.reshape(30, -1) == some.qkv[:, : 4 * 24]).all()
    turned = poisoned(ops, some.group, some.pages, "f32")
    ops.rope_store(some.qkv, turned, batch, still(30, 12), None)
    assert (ops.attend(q, kv, batch, 0.3) == ops.attend(q, turned, batch, 0.3)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "group", [KVGroup(1, 32, 16), KVGroup(2, 16, 8), KVGroup(1, 32, 16, v_in_k=True)]
)
def test_what_a_row_does_not_see_cannot_leak(native: Make, group: KVGroup, dtype: str) -> None:
    """Infinities and NaN at later and at earlier positions leave the rows between them alone."""
    for share, window in ((1, 0), (3, 0), (3, 20), (16, 70)):
        some, ops = case(group, share, (160,), 32), native(mode(dtype))
        clean = some.attend(ops, some.store(ops, dtype), [(0, 160)], Kind(window))
        qkv, bad = some.qkv.copy(), slice(some.heads * group.k_dim, None)
        qkv[100:, bad] = np.array([np.nan, np.inf])[np.arange(60) % 2][:, None]
        qkv[: 10 if window else 0, bad] = -np.inf
        kv = some.store(ops, dtype)
        batch = some.pages.step([(0, 160)])
        ops.rope_store(qkv, kv, batch, still(160, 0), None)
        out = ops.attend(some.q, kv, batch, 0.3, window)
        first = 10 + window - 1 if window else 0
        assert (out[first:100] == clean[first:100]).all()
        assert not np.isfinite(out[100:]).any(), "what a row sees must show"


def refused(some: Case, ops: Ops, **change: object) -> None:
    kv, batch = some.store(ops, "f32"), some.pages.step(some.whole)
    with pytest.raises(ValueError, match=str(next(iter(change))).rstrip("s")):
        ops.attend(some.q, kv, batch, 0.3, **change)  # type: ignore[arg-type]


def test_refusals() -> None:
    some, ops = case(KVGroup(1, 8, 8), 2, (20,)), CpuOps(1, BEST)
    refused(some, ops, window=-1)
    refused(some, ops, chunk=-1)
    refused(some, ops, softcap=-1.0)
    refused(some, ops, softcap=float("inf"))
    refused(some, ops, softcap=float("nan"))
    refused(some, ops, sinks=np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="V of 9 elements in K of 8; allowed: at most 8"):
        ops.make_kv_layer(KVGroup(1, 8, 9, v_in_k=True), 1, 16, "f16")
    batch: Batch = some.pages.step(some.whole)
    kv = some.store(ops, "f32")
    wrong = HeadNorm(np.ones(7, np.float32), np.ones(8, np.float32), 1e-6)
    with pytest.raises(ValueError, match="norm weights"):
        ops.rope_store(some.qkv, kv, batch, still(20, 4), wrong)
