"""Native attention: bits that depend on a row's q and the K/V it sees only; distance from float64.

The truth here is a few lines of NumPy over K/V gathered by hand, independent of the reference ops.
"""

import mmap
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from op_cases import Paged, ids, normal, paged, poisoned, still

from flyweight.errors import ConfigError
from flyweight.ops.base import Array, from_bf16_bits, to_bf16_bits
from flyweight.ops.operands import HeadNorm, Rotation
from flyweight.plan.machine import measure_resident
from flyweight.spec import KVGroup
from flyweight.wire import F32

_native = pytest.importorskip("flyweight._native")
from flyweight.ops.cpu.attention import Attention, CpuKV, make_kv_layer  # noqa: E402

ISAS = _native.isas()
DTYPES = ("f32", "f16", "bf16")
SPLIT = 512  # positions of one split; its neighbours are where orders could go wrong
EDGES = [
    1,
    2,
    15,
    16,
    17,
    63,
    64,
    65,
    127,
    255,
    256,
    257,
    511,
    512,
    513,
    575,
    577,
    1023,
    1025,
    1100,
]
slow_ok = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Ops(Attention):
    """The four ops with the signature of the op table, so that the shared cases run on them."""

    def __init__(self, isa: str, threads: int = 2) -> None:
        super().__init__(_native.Pool(threads, isa))

    make_kv_layer = staticmethod(make_kv_layer)


def rounded(x: F32, dtype: str) -> NDArray[np.float64]:
    if dtype == "bf16":
        return from_bf16_bits(to_bf16_bits(x)).astype(np.float64)
    return x.astype(np.float16 if dtype == "f16" else np.float32).astype(np.float64)


def truth(
    q: F32, k: F32, v: F32, positions: Array, scale: float, dtype: str
) -> NDArray[np.float64]:
    """One sequence: q [n,Hq,Dk], k [c,Hk,Dk], v [c,Hk,Dv] -> [n,Hq*Dv] in float64."""
    share = q.shape[1] // k.shape[1]
    kk, vv = (np.repeat(rounded(x, dtype).swapaxes(0, 1), share, axis=0) for x in (k, v))
    scores = q.astype(np.float64).swapaxes(0, 1) @ kk.swapaxes(1, 2) * scale  # [Hq,n,c]
    hidden = np.arange(k.shape[0])[None, None, :] > positions[None, :, None]
    p = np.exp(np.where(hidden, -np.inf, scores - scores.max(axis=2, keepdims=True)))
    mixed = p / p.sum(axis=2, keepdims=True) @ vv
    return np.ascontiguousarray(mixed.swapaxes(0, 1)).reshape(len(q), -1)


class Case:
    """Sequences of given contexts with random K/V in a pool full of NaN; attends any part."""

    def __init__(self, contexts: list[int], group: KVGroup, share: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.contexts, self.group, self.heads = contexts, group, group.heads * share
        self.scale = float(group.k_dim) ** -0.5
        self.q = [normal(rng, c, self.heads, group.k_dim) * 2 for c in contexts]
        self.k = [normal(rng, c, group.heads, group.k_dim) for c in contexts]
        self.v = [normal(rng, c, group.heads, group.v_dim) for c in contexts]
        self.rng = rng

    def store(self, ops: Ops, block: int, dtype: str) -> tuple[CpuKV, Paged]:
        pages = paged(self.rng, [(0, c) for c in self.contexts], block)
        kv = make_kv_layer(self.group, pages.blocks, block, dtype)
        fill_nan(kv)
        batch = pages.step([(0, c) for c in self.contexts])
        k, v = np.concatenate(self.k), np.concatenate(self.v)
        tokens = len(k)
        q = np.zeros((tokens, self.group.heads * self.group.k_dim), np.float32)
        qkv = np.concatenate([q, k.reshape(tokens, -1), v.reshape(tokens, -1)], axis=1)
        ops.rope_store(qkv, kv, batch, still(tokens, self.group.k_dim // 2), None)
        return kv, pages

    def attend(self, ops: Ops, kv: CpuKV, pages: Paged, chunks: list[tuple[int, int]]) -> list[F32]:
        """One call; the output of each sequence's chunk."""
        q = np.concatenate([self.q[s][c : c + n] for s, (c, n) in enumerate(chunks)])
        batch = pages.step(chunks)
        out = ops.attend(q, kv, batch, self.scale)
        assert out.shape == (len(q), self.heads * self.group.v_dim) and np.isfinite(out).all()
        return np.split(out, batch.starts[1:-1])

    def error(self, got: list[F32], chunks: list[tuple[int, int]], dtype: str) -> float:
        worst = 0.0
        for s, (c, n) in enumerate(chunks):
            want = truth(
                self.q[s][c : c + n], self.k[s], self.v[s], np.arange(c, c + n), self.scale, dtype
            )
            worst = max(worst, float(np.abs(got[s] - want).max(initial=0)))
        return worst


def fill_nan(kv: CpuKV) -> None:
    word = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[kv.dtype]
    for raw in (kv.k, kv.v):
        raw.view(word)[:] = 0x7FC0 if kv.dtype == "bf16" else np.nan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_every_split_boundary(isa: str, dtype: str) -> None:
    """The last two tokens of each context against float64, for a block size of each layout."""
    ops = Ops(isa)
    case = Case(EDGES, KVGroup(2, 32, 32), 2)
    chunks = [(max(0, c - 2), min(2, c)) for c in EDGES]
    results = []
    for block in (1, 16, 24, 32, 64, 256):
        got = case.attend(ops, *case.store(ops, block, dtype), chunks)
        assert case.error(got, chunks, dtype) <= 1e-5
        results.append(np.concatenate(got))
    for other in results[1:]:
        assert (other == results[0]).all()


@st.composite
def cases(draw: st.DrawFn, products: float) -> tuple[Case, int, str]:
    """Whole prompts of at most so many `products` of q and k: long ones have few, short heads."""
    k_dim = draw(st.sampled_from([2, 8, 32, 48, 64, 80, 128, 256]))
    v_dim = draw(st.sampled_from([k_dim, k_dim, 8, 40, 64]))
    share, heads = draw(st.sampled_from([1, 2, 3, 7, 8])), draw(st.integers(1, 3))
    lengths = st.one_of(st.sampled_from(EDGES[:14]), st.integers(1, 300))
    contexts = draw(st.lists(lengths, min_size=1, max_size=3))
    most = int((products / (heads * share * (k_dim + v_dim) * len(contexts))) ** 0.5)
    contexts = [min(c, most) for c in contexts]
    case = Case(contexts, KVGroup(heads, k_dim, v_dim), share, draw(st.integers(0, 99)))
    return case, draw(st.sampled_from([1, 3, 16, 32, 48, 64])), draw(st.sampled_from(DTYPES))


@pytest.mark.parametrize("isa", ISAS)
@slow_ok
@given(data=st.data())
def test_a_row_depends_on_nothing_else(isa: str, data: st.DataObject, at_length: bool) -> None:
    """Whole prompts == any chunking == one token alone == other threads, bit for bit."""
    case, block, dtype = data.draw(cases(1e11 if at_length else 2e8))
    ops = Ops(isa, data.draw(st.sampled_from([1, 2, 3, 7])))
    kv, pages = case.store(ops, block, dtype)
    whole = [(0, c) for c in case.contexts]
    full = case.attend(ops, kv, pages, whole)
    assert case.error(full, whole, dtype) <= 2e-5
    cuts = [data.draw(st.integers(0, c)) for c in case.contexts]
    ends = [data.draw(st.integers(cut, c)) for cut, c in zip(cuts, case.contexts, strict=True)]
    chunks = [(cut, end - cut) for cut, end in zip(cuts, ends, strict=True)]
    if sum(n for _, n in chunks):
        part = case.attend(Ops(isa, 3), kv, pages, chunks)
        for s, (c, n) in enumerate(chunks):
            assert (part[s] == full[s][c : c + n]).all()
    s = data.draw(st.integers(0, len(case.contexts) - 1))
    token = data.draw(st.integers(0, case.contexts[s] - 1))
    alone = [(token, 1) if i == s else (0, 0) for i in range(len(case.contexts))]
    assert (case.attend(Ops(isa, 1), kv, pages, alone)[s] == full[s][token]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_threads_and_company(isa: str) -> None:
    """A long decode alone is cut at the splits and merged, next to others not: the same bits."""
    contexts = [1500, 700, 90, 513, 64, 1]
    case = Case(contexts, KVGroup(2, 64, 64), 2)
    last = [(c - 1, 1) for c in contexts]
    results = []
    for threads in (1, 2, 3, 7):
        ops = Ops(isa, threads)
        kv, pages = case.store(ops, 16, "f16")
        together = np.concatenate(case.attend(ops, kv, pages, last))
        for s in range(len(contexts)):
            alone = [chunk if i == s else (0, 0) for i, chunk in enumerate(last)]
            assert (case.attend(ops, kv, pages, alone)[s] == together[s]).all()
        results.append(together)
    assert all((other == results[0]).all() for other in results)


@pytest.mark.parametrize("isa", ISAS)
def test_later_positions_cannot_leak(isa: str) -> None:
    """Infinities and NaN at later positions leave earlier rows of the same chunk as they are."""
    case = Case([100], KVGroup(1, 16, 16), 3)
    ops = Ops(isa)
    clean = case.attend(ops, *case.store(ops, 16, "f32"), [(0, 100)])[0]
    case.k[0][70:], case.v[0][70:] = np.nan, np.inf
    kv, pages = case.store(ops, 16, "f32")
    q = case.q[0]
    out = ops.attend(q, kv, pages.step([(0, 100)]), case.scale)
    assert (out[:70] == clean[:70]).all()


def test_targets_agree_to_rounding() -> None:
    """All targets run the same fmas in the same order: equal bits, not just near ones."""
    case = Case([600, 40], KVGroup(2, 48, 48), 3)
    outs = []
    for isa in ISAS:
        ops = Ops(isa)
        outs.append(
            np.concatenate(case.attend(ops, *case.store(ops, 16, "f16"), [(560, 40), (0, 40)]))
        )
    assert all((out == outs[0]).all() for out in outs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_values_are_rounded_to_nearest_even(isa: str, dtype: str) -> None:
    """A context of one gives V back: exactly the rounding of NumPy or of bf16_bits."""
    rng = np.random.default_rng(1)
    v = np.concatenate(
        [normal(rng, 200), [0.0, -0.0, 6e-8, 1e-7, 65504, 1 + 2**-11, 1 + 3 * 2**-11]]
    )
    v = v.astype(np.float32)[:, None, None] * np.ones((1, 1, 8), np.float32)
    case = Case([1] * len(v), KVGroup(1, 8, 8), 1)
    case.v = [row[None] for row in v.reshape(-1, 1, 8)]
    ops = Ops(isa)
    got = np.concatenate(case.attend(ops, *case.store(ops, 16, dtype), [(0, 1)] * len(v)))
    assert (got == rounded(v.reshape(-1, 8), dtype)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dim", "rotated"), [(8, 8), (48, 20), (80, 80), (128, 64), (128, 128)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (10, 5)])  # five are parted into four
def test_rope_store(isa: str, dim: int, rotated: int, heads: int, kv_heads: int) -> None:
    """q, K and V against float64: head norm, half-split rotation; k_dim and v_dim may differ."""
    rng = np.random.default_rng(dim)
    group, tokens = KVGroup(kv_heads, dim, 24), 37
    x = normal(rng, tokens, heads + group.heads, dim)
    v = normal(rng, tokens, group.heads, group.v_dim)
    qkv = np.concatenate([x.reshape(tokens, -1), v.reshape(tokens, -1)], axis=1)
    angle = normal(rng, tokens, rotated // 2) * 3
    rope = Rotation(np.cos(angle), np.sin(angle))
    norms = HeadNorm(normal(rng, dim), normal(rng, dim), 1e-6)
    pages = paged(rng, [(0, tokens)], 16)
    ops, batch = Ops(isa), pages.step([(0, tokens)])
    for norm in (None, norms):
        kv = make_kv_layer(group, pages.blocks, 16, "f32")
        q = ops.rope_store(qkv, kv, batch, rope, norm)
        y = x.astype(np.float64)
        if norm is not None:
            y = y / np.sqrt((y**2).mean(-1, keepdims=True) + norm.eps)
            y *= np.where(np.arange(heads + group.heads)[:, None] < heads, norm.q, norm.k)
        a, b = y[..., : rotated // 2].copy(), y[..., rotated // 2 : rotated].copy()
        c, s = np.cos(angle.astype(np.float64))[:, None], np.sin(angle.astype(np.float64))[:, None]
        y[..., : rotated // 2], y[..., rotated // 2 : rotated] = a * c - b * s, b * c + a * s
        assert np.abs(q - y[:, :heads]).max() <= 4e-6
        k_all = kv.k[:-64].view(np.float32).reshape(pages.blocks, group.heads, dim, 16)
        k = k_all[batch.slots // 16, :, :, batch.slots % 16]  # [T,Hk,D]
        assert np.abs(k - y[:, heads:]).max() <= 4e-6
        v_all = kv.v[:-64].view(np.float32).reshape(pages.blocks, group.heads, 16, group.v_dim)
        assert (v_all[batch.slots // 16, :, batch.slots % 16] == v).all()
        one = replace(batch, slots=batch.slots[5:6], positions=batch.positions[5:6])
        alone = ops.rope_store(qkv[5:6], kv, one, Rotation(rope.cos[5:6], rope.sin[5:6]), norm)
        assert (alone[0] == q[5]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block", [1, 16])
def test_move_kv_reads_before_it_writes(isa: str, block: int) -> None:
    ops, group = Ops(isa), KVGroup(2, 6, 10)
    kv = make_kv_layer(group, 64 // block, block, "f16")
    rng = np.random.default_rng(0)
    kv.k.view(np.uint16)[:] = rng.integers(0, 1 << 15, kv.k.size // 2)
    kv.v.view(np.uint16)[:] = rng.integers(0, 1 << 15, kv.v.size // 2)
    side = 16 if block == 16 else 1

    def rows() -> tuple[Array, Array]:  # [slots, heads, dim]
        k = kv.k[:-64].view(np.uint16).reshape(64 // block, 2, block // side, 6, side)
        v = kv.v[:-64].view(np.uint16).reshape(64 // block, 2, block, 10)
        return k.transpose(0, 2, 4, 1, 3).reshape(64, 2, 6).copy(), v.swapaxes(1, 2).reshape(
            64, 2, 10
        ).copy()

    src, dst = ids(3, 5, 9, 40), ids(5, 3, 10, 9)
    want = rows()
    for part in want:
        part[dst] = part[src]
    ops.move_kv(kv, src, dst)
    for got, expected in zip(rows(), want, strict=True):
        assert (got == expected).all()


def test_untouched_blocks_cost_nothing() -> None:
    kv = make_kv_layer(KVGroup(8, 128, 128), 1 << 16, 16, "f16")  # 4 GiB of address space
    assert kv.nbytes == (1 << 20) * 8 * 256 * 2
    assert kv.block_size == 16 and kv.group.heads == 8


def populates() -> bool:
    """Whether memory that is requested is there before it is written; qemu passes over it."""
    advice = 23  # MADV_POPULATE_WRITE, of Linux 5.14
    with mmap.mmap(-1, 16 << 20) as room:
        before = measure_resident()
        with suppress(OSError):
            room.madvise(advice)
        return measure_resident() - before >= 15 << 20


def test_memory_requested_is_there_and_what_was_written_stays() -> None:
    ops, kv = Ops(ISAS[-1]), make_kv_layer(KVGroup(8, 128, 128), 1 << 12, 16, "f16")
    able = populates()
    kv.k[: 1 << 20] = 7
    before = measure_resident()
    ops.populate_kv(kv, 0, 1 << 10)  # 32 MiB of K and as much of V
    if able:
        assert measure_resident() - before >= (63 << 20) - (2 << 20)
    ops.populate_kv(kv, (1 << 12) - 1, 1)
    ops.populate_kv(kv, 5, 0)
    assert (kv.k[: 1 << 20] == 7).all() and not kv.k[1 << 20 : 40 << 20].any()
    for first, count in ((-1, 1), (0, -1), (4000, 97), (2**62, 2**62)):
        with pytest.raises(ValueError):
            ops.populate_kv(kv, first, count)


def test_refusals() -> None:
    ops, group = Ops(ISAS[-1]), KVGroup(1, 8, 8)
    with pytest.raises(ConfigError, match="did you mean 'f16'"):
        make_kv_layer(group, 1, 16, "fp16")
    with pytest.raises(ConfigError, match="window"):
        make_kv_layer(KVGroup(1, 8, 8, "window", 4), 1, 16, "f16")
    case = Case([20], group, 1)
    kv, pages = case.store(ops, 16, "f32")
    batch, q = pages.step([(0, 20)]), case.q[0]
    bad_table = replace(batch, tables=np.array([[1, 99]], np.int32))
    for wrong in (
        bad_table,
        replace(batch, tables=batch.tables[:, :1]),
        replace(batch, positions=-batch.positions),
    ):
        with pytest.raises(ValueError):
            ops.attend(q, kv, wrong, 1.0)
    with pytest.raises(ValueError):
        ops.rope_store(
            np.zeros((20, 24), np.float32),
            kv,
            replace(batch, slots=batch.slots + 99),
            still(20, 4),
            None,
        )


def test_nothing_to_attend() -> None:
    ops = Ops(ISAS[-1])
    case = Case([5], KVGroup(1, 8, 8), 1)
    kv, pages = case.store(ops, 16, "f32")
    empty = pages.step([(5, 0)])
    assert ops.attend(np.empty((0, 1, 8), np.float32), kv, empty, 1.0).shape == (0, 8)
    assert poisoned(ops, KVGroup(1, 8, 8), pages, "f16").nbytes == pages.blocks * 16 * 8 * 2 * 2
