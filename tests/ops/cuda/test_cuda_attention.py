"""Attention on the device: against the reference within docs/ops.md's bounds, and against itself in
any company, exactly.

Triton's interpreter is slow, so that tiles and splits are small where a case has many of them; a
GPU runs the same cases, and those with the tiles it is tuned for.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from op_cases import EPS, Paged, ids, normal, paged, still

from flyweight.errors import ConfigError
from flyweight.ops.cuda import CudaOps, attention
from flyweight.ops.cuda.attention import Tiles, TileShape
from flyweight.ops.cuda.kv import CODES, TYPES
from flyweight.ops.operands import HeadNorm, Rotation
from flyweight.ops.reference import ReferenceOps
from flyweight.ops.reference_kv import FLOATS, encode, turn
from flyweight.spec import KV_TYPES, KVGroup
from flyweight.wire import F32

SMALL = Tiles(16, 16, 32, 32, TileShape(16, 4, 1), TileShape(16, 4, 1), TileShape(32, 4, 1))
CONTEXTS = (1, 33, 70)
CHUNKS = [(0, 1), (16, 17), (63, 7)]


def make(device: str, activations: str = "bf16") -> CudaOps:
    """Steps as they are given: what is captured is padded, and these have no padding rows."""
    return CudaOps(device, activations, graphs=False)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CONFIG", dict.fromkeys(attention.CONFIG, SMALL))


@dataclass(frozen=True)
class Case:
    """Random K/V of sequences in a pool full of NaN, and q of every token."""

    group: KVGroup
    heads: int
    pages: Paged
    qkv: F32
    q: F32
    contexts: tuple[int, ...]

    def store(self, ops: Any, dtype: str) -> Any:
        """K/V on the device or in the reference, as they are: no rotation."""
        name = "bf16" if dtype == "pairs" else dtype
        kv = ops.make_kv_layer(self.group, self.pages.blocks, self.pages.block, name)
        batch = self.pages.step([(0, c) for c in self.contexts])
        if isinstance(ops, CudaOps):  # without the op, which takes its time in the interpreter
            write(kv, batch.slots, self.qkv[:, self.heads * self.group.k_dim :])
        else:
            ops.rope_store(self.qkv, kv, batch, still(len(self.qkv), 0), None)
        return kv

    def store_codes(self, ops: Any, dtype: str) -> Any:
        """The same through the op, into scales that are NaN elsewhere."""
        kv = ops.make_kv_layer(self.group, self.pages.blocks, self.pages.block, dtype)
        for held in kv.scales:
            held.fill_(float("nan"))
        batch = self.pages.step([(0, c) for c in self.contexts])
        ops.rope_store(give(ops, self.qkv), kv, batch, still(len(self.qkv), 0), None)
        return kv

    def attend(self, ops: Any, kv: Any, chunks: list[tuple[int, int]], **how: Any) -> F32:
        begins = np.cumsum([0, *self.contexts])
        q = [self.q[b + c : b + c + n] for b, (c, n) in zip(begins, chunks, strict=False)]
        batch = self.pages.step(chunks)
        out = ops.attend(give(ops, np.concatenate(q)), kv, batch, 0.3, **how)
        return out if isinstance(out, np.ndarray) else ops.fetch(out)

    def bound(self, dtype: str) -> float:
        """docs/ops.md's, and the rounding of what `linear` reads."""
        k = np.abs(self.qkv[:, self.heads * self.group.k_dim :]).max()
        spread = 0.3 * float(np.abs(self.q).sum(-1).max() * k)
        pairs = 2.0**-8 if dtype != "f32" else 0.0
        return (64 * EPS * (1 + spread) + pairs) * float(k) + float(k) * 2.0**-9 * (dtype != "f32")


def write(kv: Any, slots: Any, rows: F32) -> None:
    """K and V [T, Hk*Dk + Hk*Dv] at slots, NaN elsewhere."""
    where, wide = torch.from_numpy(slots).long(), kv.group.heads * kv.group.k_dim
    for held, part in ((kv.k, rows[:, :wide]), (kv.v, rows[:, wide:])):
        if held is not None:
            size = held.shape[2]
            shaped = torch.from_numpy(part.copy()).view(len(rows), kv.group.heads, -1)
            held.fill_(float("nan"))
            held[where // size, :, where % size] = shaped.to(held.device, held.dtype)


def give(ops: Any, x: F32) -> Any:
    return torch.from_numpy(x).to(ops.device) if isinstance(ops, CudaOps) else x


def case(group: KVGroup, share: int, contexts: tuple[int, ...] = CONTEXTS, block: int = 16) -> Case:
    rng, heads = np.random.default_rng(0), group.heads * share
    pages = paged(rng, [(0, c) for c in contexts], block)
    qkv = normal(rng, sum(contexts), heads * group.k_dim + group.width)
    q = normal(rng, sum(contexts), heads, group.k_dim) * np.float32(0.5)
    return Case(group, heads, pages, qkv, q, contexts)


def mode(dtype: str) -> str:
    """Of activations; "pairs" is bf16, multiplied in bf16."""
    return "bf16" if dtype == "pairs" else "f32"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="too slow in Triton's interpreter")
@pytest.mark.parametrize(
    ("group", "share"),
    [
        (KVGroup(8, 128, 128), 4), (KVGroup(2, 256, 256), 4),
        (KVGroup(1, 576, 512, v_in_k=True), 16),
    ],
    ids=str,
)  # fmt: skip
def test_tuned_tiles(group: KVGroup, share: int) -> None:
    """A prompt, its last tokens in small chunks and one by one: the same bits, near the truth."""
    contexts = (600, 90, 64) if share * group.k_dim > 9000 else (1500, 700, 64)
    some, ops = case(group, share, contexts, 32), make("cuda")
    kv = some.store(ops, "pairs")
    whole = some.attend(ops, kv, [(0, c) for c in contexts])
    whole = np.split(whole, np.cumsum(contexts)[:-1])
    for count in (1, 3, 300):
        chunks = [(c - min(count, c), min(count, c)) for c in some.contexts]
        part = some.attend(ops, kv, chunks)
        want = np.concatenate([w[-n:] for w, (_, n) in zip(whole, chunks, strict=True)])
        assert (part == want).all(), f"{count} tokens: {(part != want).mean()} differ"
    truth = ReferenceOps("bf16")
    last = [(c - 1, 1) for c in contexts]
    want = some.attend(truth, some.store(truth, "pairs"), last)
    got = np.stack([w[c] for w, (c, _) in zip(whole, last, strict=True)])
    assert np.abs(got - want).max() <= some.bound("pairs")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        ("pairs", {}), ("pairs", {"window": 20}), ("pairs", {"chunk": 24}),
        ("pairs", {"softcap": 2.0, "sinks": True}), ("f16", {}), ("bf16", {}),
        ("f32", {"window": 40, "softcap": 30.0, "sinks": True}),
    ],
    ids=str,
)  # fmt: skip
def test_kinds(device: str, dtype: str, how: dict[str, Any]) -> None:
    some = case(KVGroup(1, 24, 16), 3)
    if "sinks" in how:
        how = how | {"sinks": np.linspace(-3, 5, some.heads).astype(np.float32)}
    mine, truth = make(device, mode(dtype)), ReferenceOps(mode(dtype))
    kv = some.store(mine, dtype)
    got = some.attend(mine, kv, CHUNKS, **how)
    want = some.attend(truth, some.store(truth, dtype), CHUNKS, **how)
    assert np.abs(got - want).max() <= some.bound(dtype)
    for s, (c, n) in enumerate(CHUNKS):  # the last token of each sequence alone
        alone = [(c + n - 1, 1) if i == s else (0, 0) for i in range(len(CHUNKS))]
        last = sum(n for _, n in CHUNKS[: s + 1]) - 1
        assert (some.attend(mine, kv, alone, **how)[0] == got[last]).all()


@pytest.mark.usefixtures("small")
def test_splits_side_by_side_or_not(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some, ops = case(KVGroup(1, 16, 16), 2), make(device)
    kv, last = some.store(ops, "pairs"), [(0, 1), (32, 1), (69, 1)]
    apart = [some.attend(ops, kv, chunks, window=w) for chunks in (CHUNKS, last) for w in (0, 40)]
    monkeypatch.setattr(attention, "PROCESSORS", 0)
    monkeypatch.setattr(attention, "MANY_PROGRAMS", 0)
    whole = [some.attend(ops, kv, chunks, window=w) for chunks in (CHUNKS, last) for w in (0, 40)]
    for one, other in zip(apart, whole, strict=True):
        assert (one == other).all()


SHAPES = [  # what is stored; KV heads, query heads of each, k_dim, v_dim, V in K
    ("pairs", 2, 4, 64, 64, False), ("f32", 1, 1, 80, 40, False), ("pairs", 1, 20, 96, 64, True),
    ("f32", 1, 5, 24, 7, True), ("pairs", 1, 2, 192, 128, False), ("pairs", 1, 2, 40, 40, True),
]  # fmt: skip


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: str, shape: tuple[str, int, int, int, int, bool]) -> None:
    dtype, heads, share, k_dim, v_dim, v_in_k = shape
    some = case(KVGroup(heads, k_dim, v_dim, v_in_k=v_in_k), share, block=24 if share == 1 else 16)
    mine, truth = make(device, mode(dtype)), ReferenceOps(mode(dtype))
    kv, chunks = some.store(mine, dtype), [(0, 1), (28, 5), (64, 6)]
    got = some.attend(mine, kv, chunks)
    want = some.attend(truth, some.store(truth, dtype), chunks)
    assert np.abs(got - want).max() <= some.bound(dtype)
    last = some.attend(mine, kv, [(0, 1), (32, 1), (69, 1)])  # a decode step
    assert (last == got[[0, 5, 11]]).all()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("dtype", "window"), [("f32", 0), ("pairs", 0), ("pairs", 20)])
def test_what_a_row_does_not_see_cannot_leak(device: str, dtype: str, window: int) -> None:
    some, ops = case(KVGroup(1, 16, 16), 3, (60,)), make(device, mode(dtype))
    clean = some.attend(ops, some.store(ops, dtype), [(0, 60)], window=window)
    qkv, bad = some.qkv.copy(), slice(some.heads * 16, None)
    qkv[50:, bad] = np.array([np.nan, np.inf])[np.arange(10) % 2][:, None]
    qkv[: 10 if window else 0, bad] = -np.inf
    dirty = replace(some, qkv=qkv)
    out = dirty.attend(ops, dirty.store(ops, dtype), [(0, 60)], window=window)
    first = 10 + window - 1 if window else 0
    assert np.isfinite(clean).all() and (out[first:50] == clean[first:50]).all()
    assert not np.isfinite(out[50:]).any(), "what a row sees must show"


@pytest.mark.usefixtures("small")
def test_sinks_at_the_ends(device: str) -> None:
    some, ops = case(KVGroup(1, 16, 16), 4, (40,)), make(device, "f32")
    kv, chunks = some.store(ops, "f32"), [(35, 5)]
    plain = some.attend(ops, kv, chunks).reshape(5, 4, 16)
    least, most = np.finfo(np.float32).min, np.finfo(np.float32).max
    ends = np.array([-np.inf, least, most, np.inf], np.float32)
    out = some.attend(ops, kv, chunks, sinks=ends).reshape(5, 4, 16)
    assert (out[:, :2] == plain[:, :2]).all() and (out[:, 2:] == 0).all()


def test_squash_is_tanh(device: str) -> None:
    """A softcap out of reach changes little, a tight one flattens."""
    some, ops = case(KVGroup(1, 16, 16), 2, (40,)), make(device, "f32")
    kv, chunks = some.store(ops, "f32"), [(39, 1)]
    plain = some.attend(ops, kv, chunks)
    assert np.abs(some.attend(ops, kv, chunks, softcap=1e6) - plain).max() <= some.bound("f32")
    v = some.qkv[:, -16:].mean(axis=0)
    flat = some.attend(ops, kv, chunks, softcap=1e-6).reshape(2, 16)
    assert np.abs(flat - v).max() < 1e-5


CODED = tuple(CODES)


def read_codes(kv: Any, slots: Any) -> list[tuple[Any, F32]]:
    """K's and V's numbers [n, heads, elements] and scales [n, heads, 1] as they are stored."""
    found, size = [], kv.block_size
    where = torch.from_numpy(slots).long().to(kv.k.device)
    for held, scale in zip((kv.k, kv.v), kv.scales, strict=True):
        codes = held[where // size, :, where % size].cpu().numpy()
        numbers = codes.astype(np.float64)
        if kv.dtype != "int8":
            mantissa, bias = FLOATS[kv.dtype]
            whole, rest = np.divmod(codes & 127, 2**mantissa)
            assert not ((whole == 0) & (rest > 0)).any(), "subnormals are not stored"
            numbers = np.where(whole == 0, 0, np.ldexp(1 + rest / 2**mantissa, whole - bias))
            numbers = np.where(codes < 0, -numbers, numbers)
        found.append((numbers, scale[where // size, :, where % size].cpu().numpy()[..., None]))
    return found


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize(("k_dim", "v_dim"), [(128, 128), (48, 40), (6, 10)])
def test_stored_codes_are_the_references(device: str, dtype: str, k_dim: int, v_dim: int) -> None:
    rng, group, ops = np.random.default_rng(1), KVGroup(2, k_dim, v_dim), make(device)
    batch = paged(rng, [(0, 7)], 16).step([(0, 7)])
    qkv = normal(rng, 7, 2 * k_dim + group.width)
    qkv *= np.float32(10) ** rng.integers(-20, 20, (7, 1)).astype(np.float32)
    qkv[3], qkv[4, 5], qkv[5, -1], qkv[6] = 0, 1e-45, 3e38, 1e-42
    kv = ops.make_kv_layer(group, 2, 16, dtype)
    ops.rope_store(give(ops, qkv), kv, batch, still(7, 0), None)
    k, v = np.split(qkv[:, 2 * k_dim :], [2 * k_dim], axis=1)
    given = turn(k.reshape(7, 2, k_dim), k_dim & -k_dim), v.reshape(7, 2, v_dim)
    turned = np.float32(k_dim & -k_dim), np.float32(1)
    for mine, x, n in zip(read_codes(kv, batch.slots), given, turned, strict=True):
        numbers, scale = encode(x, dtype)
        np.testing.assert_array_equal(mine[1], scale / n)
        assert (mine[0][..., : x.shape[-1]] == numbers)[scale[..., 0] > 0].all()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("dtype", "v_in_k"), [*((x, False) for x in CODED), ("int8", True)])
def test_attention_over_codes(device: str, dtype: str, v_in_k: bool) -> None:
    """Against the reference; the last tokens alone; what is not seen holds NaN."""
    some = case(KVGroup(1, 48, 32, v_in_k=v_in_k), 2)
    mine, truth = make(device), ReferenceOps("bf16")
    kv = some.store_codes(mine, dtype)
    got = some.attend(mine, kv, CHUNKS)
    want = some.attend(truth, some.store(truth, dtype), CHUNKS)
    assert np.abs(got - want).max() <= some.bound(dtype)
    last = some.attend(mine, kv, [(0, 1), (32, 1), (69, 1)])
    assert (last == got[[0, 17, 24]]).all()


@pytest.mark.usefixtures("small")
def test_codes_that_are_not_seen_cannot_leak(device: str) -> None:
    some, ops = case(KVGroup(1, 16, 16), 3, (40,)), make(device)
    clean = some.attend(ops, some.store_codes(ops, "int8"), [(0, 40)])
    qkv = some.qkv.copy()
    qkv[30:, some.heads * 16 :] = np.array([np.nan, np.inf])[np.arange(10) % 2][:, None]
    dirty = replace(some, qkv=qkv)
    out = dirty.attend(ops, dirty.store_codes(ops, "int8"), [(0, 40)])
    assert np.isfinite(clean).all() and (out[:30] == clean[:30]).all()
    assert np.isnan(out[30:]).all()


@pytest.mark.parametrize(
    ("norm", "dim", "rotated"),
    [("none", 24, 24), ("none", 80, 0), ("heads", 64, 32), ("whole", 64, 64), ("whole q", 24, 24)],
)
def test_rope_store(device: str, norm: str, dim: int, rotated: int) -> None:
    rng, group, heads, tokens = np.random.default_rng(dim), KVGroup(2, dim, 40), 4, 9
    pages = paged(rng, [(0, tokens)], 16)
    batch = pages.step([(0, tokens)])
    qkv = normal(rng, tokens, heads * dim + group.width)
    angle = normal(rng, tokens, rotated // 2) * 3
    rope = Rotation(np.cos(angle), np.sin(angle))
    q_size = dim * (heads if "whole" in norm else 1)
    k_size = dim * (group.heads if norm == "whole" else 1)
    norms = HeadNorm(normal(rng, q_size), normal(rng, k_size), 1e-6)
    given = None if norm == "none" else norms
    mine, truth = make(device, "f32"), ReferenceOps("f32")
    kv, reference = (ops.make_kv_layer(group, pages.blocks, 16, "f32") for ops in (mine, truth))
    got = mine.rope_store(give(mine, qkv), kv, batch, rope, given)
    want = truth.rope_store(qkv, reference, batch, rope, given)
    size = np.abs(want).max() * (4 if norm == "none" else 16) * 2 * EPS
    assert np.abs(mine.fetch(got) - want).max() <= size
    k, v = (rows_of(held, batch.slots) for held in (kv.k, kv.v))
    bound = np.abs(reference.k[batch.slots]).max() * (4 if norm == "none" else 16) * 2 * EPS
    assert np.abs(k - reference.k[batch.slots]).max() <= bound
    assert (v == reference.v[batch.slots]).all()
    one = replace(batch, slots=batch.slots[4:5], positions=batch.positions[4:5])
    own = Rotation(rope.cos[4:5], rope.sin[4:5])
    alone = mine.rope_store(give(mine, qkv[4:5].copy()), kv, one, own, given)
    assert (alone[0] == got[4]).all()


def rows_of(held: torch.Tensor, slots: Any) -> F32:
    """[n, heads, elements] of a cache, float32."""
    size, where = held.shape[2], torch.from_numpy(slots).long().to(held.device)
    rows: F32 = held[where // size, :, where % size].float().cpu().numpy()
    return rows


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_stored_values_are_rounded_to_nearest_even(device: str, dtype: str) -> None:
    edges = [0.0, -0.0, 6e-8, 1e-7, 65504, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11]
    v = np.array([*edges, np.inf, np.nan, 3e38, 1e-30, -1.001, 7, 11], np.float32)
    group, pages = KVGroup(1, 16, 16), paged(np.random.default_rng(0), [(0, 1)], 16)
    qkv, batch = np.tile(v, 3)[None], pages.step([(0, 1)])
    mine, truth = make(device), ReferenceOps("bf16")
    kv, reference = (ops.make_kv_layer(group, pages.blocks, 16, dtype) for ops in (mine, truth))
    q = mine.rope_store(give(mine, qkv), kv, batch, still(1, 0), None)
    with np.errstate(over="ignore"):
        truth.rope_store(qkv, reference, batch, still(1, 0), None)
    want = torch.from_numpy(reference.v[batch.slots].view(np.int16))
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    for held in (kv.k, kv.v):
        np.testing.assert_array_equal(rows_of(held, batch.slots), want.view(kind).float().numpy())
    assert q.dtype == (torch.bfloat16 if dtype == "bf16" else torch.float32)


def test_rotation(device: str) -> None:
    positions = ids(0, 1, 77, 4095, 131071, 1000003)
    inv_freq = (1 / 10000 ** (np.arange(0, 20, 2) / 20)).astype(np.float32)
    mine, truth = make(device), ReferenceOps()
    got, want = (ops.rotation(positions, inv_freq, 1.25) for ops in (mine, truth))
    for a, b in ((got.cos, want.cos), (got.sin, want.sin)):
        assert np.abs(mine.fetch(a) - b).max() <= 4 * EPS * 1.25
    assert mine.rotation(positions, inv_freq[:0], 1.0).cos.shape == (6, 0)


@pytest.mark.parametrize("group", [KVGroup(2, 12, 5), KVGroup(2, 12, 6, v_in_k=True)])
def test_moving_slots(device: str, group: KVGroup) -> None:
    rng, ops = np.random.default_rng(0), make(device)
    kv = ops.make_kv_layer(group, 3, 16, "bf16")
    held = [part for part in (kv.k, kv.v) if part is not None]
    for part in held:
        part.copy_(torch.from_numpy(normal(rng, *part.shape)))
    src, dst = ids(3, 4, 20, 40), ids(4, 3, 41, 0)
    before = [rows_of(part, src) for part in held]
    ops.move_kv(kv, src, dst)
    for part, rows in zip(held, before, strict=True):
        assert (rows_of(part, dst) == rows).all()


def test_memory_and_refusals(device: str) -> None:
    ops, group = make(device), KVGroup(2, 64, 32)
    for dtype in (*TYPES, *CODED):
        kv = ops.make_kv_layer(group, 3, 32, dtype)
        assert kv.nbytes == 96 * KV_TYPES[dtype].count_bytes(group)
        assert kv.spare_slot == 96 and kv.k.shape[0] == 4
    with pytest.raises(ConfigError, match="KV dtype = 'bf17' is unknown"):
        ops.make_kv_layer(group, 3, 32, "bf17")
    with pytest.raises(ConfigError, match="V of 9 elements in K of 8; allowed: at most 8"):
        ops.make_kv_layer(KVGroup(1, 8, 9, v_in_k=True), 1, 16, "f16")
    with pytest.raises(ConfigError, match="kind = 'state'"):
        ops.make_kv_layer(KVGroup(1, 8, 8, kind="state"), 1, 16, "f16")


def test_nothing_to_attend(device: str) -> None:
    some, ops = case(KVGroup(1, 16, 16), 1, (5,)), make(device)
    kv = some.store(ops, "pairs")
    assert some.attend(ops, kv, [(5, 0)]).shape == (0, 16)
