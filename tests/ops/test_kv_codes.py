"""K and V in codes: what is stored, against the reference bit for bit; attention over it, against
the reference within docs/ops.md's bound, and against itself in any company, exactly.
"""

from dataclasses import replace

import numpy as np
import pytest
from op_cases import EPS, Make, ids, normal, paged, poisoned, still

from flyweight.errors import ConfigError
from flyweight.ops.base import Array, Ops
from flyweight.ops.cpu.attention import CpuKV, make_kv_layer
from flyweight.ops.operands import KVLayer
from flyweight.ops.reference import ReferenceOps
from flyweight.ops.reference_kv import encode, turn
from flyweight.spec import KV_TYPES, KVGroup, read_kv_type
from flyweight.wire import F32

CODED = tuple(kind.name for kind in KV_TYPES.values() if kind.coded)
SHAPES = [  # KV heads, query heads of each, k_dim, v_dim: for registers and for scratch
    (2, 2, 128, 128), (1, 1, 64, 64), (1, 7, 64, 64), (2, 3, 48, 40), (1, 16, 80, 80),
    (3, 2, 6, 10),
]  # fmt: skip
CONTEXTS = (1, 17, 64, 100, 530)


class Case:
    """Random K/V of sequences in a pool full of NaN, and q of every token."""

    def __init__(
        self, group: KVGroup, share: int, contexts: tuple[int, ...], block: int = 16
    ) -> None:
        rng = np.random.default_rng(3)
        self.group, self.contexts, self.heads = group, contexts, group.heads * share
        self.pages = paged(np.random.default_rng(block), [(0, c) for c in contexts], block)
        total = sum(contexts)
        self.k = normal(rng, total, group.heads, group.k_dim)
        self.k[:, :, 0] *= 8  # an outlier, as keys have them
        self.v = normal(rng, total, group.heads, group.v_dim)
        self.q = normal(rng, total, self.heads, group.k_dim)
        self.scale = float(group.k_dim) ** -0.5

    def store(self, ops: Ops, dtype: str) -> KVLayer:
        kv = poisoned(ops, self.group, self.pages, dtype)
        total = len(self.k)
        v = [] if self.group.v_in_k else [self.v.reshape(total, -1)]
        none = np.zeros((total, self.heads * self.group.k_dim), np.float32)
        qkv = np.concatenate([none, self.k.reshape(total, -1), *v], axis=1)
        batch = self.pages.step([(0, c) for c in self.contexts])
        ops.rope_store(qkv, kv, batch, still(total, 0), None)
        return kv

    def attend(self, ops: Ops, kv: KVLayer, chunks: list[tuple[int, int]], *how: object) -> F32:
        begins = np.cumsum([0, *self.contexts])
        q = [self.q[b + c : b + c + n] for b, (c, n) in zip(begins, chunks, strict=False)]
        batch = self.pages.step(chunks)
        return ops.attend(np.concatenate(q), kv, batch, self.scale, *how)  # type: ignore[arg-type]

    def bound(self) -> float:
        """docs/ops.md's, for q and weights rounded to bf16."""
        values = self.k if self.group.v_in_k else self.v
        spread = self.scale * float(np.abs(self.q).sum(-1).max() * np.abs(self.k).max())
        return (64 * EPS * (1 + spread) + 2.0**-8) * float(np.abs(values).max())


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_over_codes(native: Make, dtype: str, shape: tuple[int, int, int, int]) -> None:
    heads, share, k_dim, v_dim = shape
    case = Case(KVGroup(heads, k_dim, v_dim), share, CONTEXTS)
    chunks = [(0, 1), (10, 7), (63, 1), (0, 100), (511, 19)]
    for mode in ("int8", "f32"):
        mine, truth = native(mode), ReferenceOps(mode)
        got = case.attend(mine, case.store(mine, dtype), chunks)
        want = case.attend(truth, case.store(truth, dtype), chunks)
        assert np.abs(got - want).max() <= case.bound()


@pytest.mark.parametrize("dtype", CODED)
def test_windows_caps_sinks_and_latents(native: Make, dtype: str) -> None:
    some = Case(KVGroup(2, 32, 32), 2, (40, 130, 600))
    latent = Case(KVGroup(1, 48, 32, v_in_k=True), 5, (40, 130, 600))
    chunks = [(0, 40), (120, 10), (590, 10)]
    sinks = normal(np.random.default_rng(1), 4)
    for case, kinds in (
        (some, [(65,), (0, 5.0), (0, 0.0, sinks), (0, 0.0, None, 100)]),
        (latent, [()]),
    ):
        mine, truth = native("int8"), ReferenceOps("int8")
        kv, reference = case.store(mine, dtype), case.store(truth, dtype)
        for how in kinds:
            got, want = (
                case.attend(mine, kv, chunks, *how),
                case.attend(truth, reference, chunks, *how),
            )
            assert np.abs(got - want).max() <= case.bound()


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("share", [2, 9])
def test_a_row_keeps_its_bits(make: Make, dtype: str, share: int) -> None:
    """Whole prompts, chunks, tokens alone, other threads and blocks."""
    results = []
    for block, threads in ((16, 1), (32, 3), (48, 2)):
        case = Case(KVGroup(2, 64, 64), share, (90, 5, 530), block)
        ops = make("int8", threads=threads)
        kv = case.store(ops, dtype)
        full = case.attend(ops, kv, [(0, 90), (0, 5), (500, 30)])
        tail = case.attend(ops, kv, [(60, 30), (5, 0), (500, 30)])
        assert (tail == np.concatenate([full[60:90], full[95:]])).all()
        for t in (0, 33, 89):
            assert (case.attend(ops, kv, [(t, 1), (0, 0), (0, 0)])[0] == full[t]).all()
        for i in (0, 11, 12, 29):
            assert (case.attend(ops, kv, [(90, 0), (2, 1), (500 + i, 1)])[1] == full[95 + i]).all()
        results.append(full)
    assert all((other == results[0]).all() for other in results)


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("share", [2, 9])
def test_what_a_row_does_not_see_cannot_leak(native: Make, dtype: str, share: int) -> None:
    """NaN and infinities in later positions, and in slots that nobody wrote."""
    case, ops = Case(KVGroup(1, 64, 64), share, (100,)), native("int8")
    clean = case.attend(ops, case.store(ops, dtype), [(0, 100)])
    case.k[70:80], case.v[70:], case.k[80:] = np.nan, np.inf, np.inf
    out = case.attend(ops, case.store(ops, dtype), [(0, 100)])
    assert np.isfinite(clean).all() and (out[:70] == clean[:70]).all()
    assert np.isnan(out[71:]).all()


@pytest.mark.parametrize("dtype", CODED)
def test_moving_slots_takes_codes_and_scales(make: Make, dtype: str) -> None:
    rng, ops = np.random.default_rng(0), make("int8")
    pages = paged(rng, [(0, 32), (0, 32)], 16)
    first, second = pages.step([(0, 32), (0, 0)]), pages.step([(0, 0), (0, 32)])
    for group in (KVGroup(2, 24, 40), KVGroup(1, 48, 32, v_in_k=True)):
        kv = poisoned(ops, group, pages, dtype)
        qkv = normal(rng, 32, 2 * group.heads * group.k_dim + group.width)
        q = ops.rope_store(qkv, kv, first, still(32, 0), None)
        ops.move_kv(kv, first.slots, second.slots)
        want = ops.attend(q, kv, first, 0.3)
        assert np.isfinite(want).all() and (ops.attend(q, kv, second, 0.3) == want).all()
        ops.move_kv(kv, first.slots[:2], ids(first.slots[1], first.slots[0]))  # reads first
        before = second.slots[:2]
        ops.move_kv(kv, before, ids(before[1], before[0]))
        assert (ops.attend(q, kv, first, 0.3) == ops.attend(q, kv, second, 0.3)).all()
        assert (ops.attend(q, kv, first, 0.3)[0] != want[0]).any()


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize(("k_dim", "v_dim"), [(128, 128), (48, 40), (6, 10)])
def test_stored_codes_are_the_references(native: Make, dtype: str, k_dim: int, v_dim: int) -> None:
    case = Case(KVGroup(2, k_dim, v_dim), 1, (37,))
    case.k[3], case.v[4] = 0, 0
    ops = native("int8")
    kv = case.store(ops, dtype)
    assert isinstance(kv, CpuKV)
    slots = case.pages.step([(0, 37)]).slots
    for mine, given, block in (
        (read_k(kv), case.k, k_dim & -k_dim),
        (read_v(kv), case.v, 1),
    ):
        numbers, scale = encode(turn(given, block), dtype)
        got_numbers, got_scale = (part[slots] for part in mine)
        assert (got_scale == scale[..., 0] / np.float32(block)).all()
        assert (got_numbers == numbers)[scale[..., 0] > 0].all()


def read_k(kv: CpuKV) -> tuple[Array, Array]:
    """Numbers [slots, heads, k_dim] and scales [slots, heads], by native/kv.h."""
    heads, dim = kv.group.heads, kv.group.k_dim
    parts, scales = split(kv.k, kv, replace(kv.group, v_in_k=True))
    if kv.dtype == "int4":  # [part, unit, lane, half, nibble]
        words = parts.view(np.uint16).reshape(len(parts), -1, 16, 2)
        codes = np.stack([words >> 4 * i & 15 for i in range(4)], axis=-1)
        codes = codes.transpose(0, 2, 1, 4, 3).reshape(len(parts), 16, -1)
    else:  # [part, pair, lane, half]
        codes = (
            parts.reshape(len(parts), -1, 16, 2).transpose(0, 2, 1, 3).reshape(len(parts), 16, -1)
        )
    return by_slot(numbers(codes[..., :dim], kv.dtype), kv, heads), by_slot(scales, kv, heads)


def read_v(kv: CpuKV) -> tuple[Array, Array]:
    heads, dim = kv.group.heads, kv.group.v_dim
    assert kv.v is not None
    parts, scales = split(kv.v, kv, replace(kv.group, k_dim=0))
    if kv.dtype == "int4":  # [part, pair, unit, column, half, nibble]
        words = parts.view(np.uint16).reshape(len(parts), 8, -1, 16, 2)
        codes = np.stack([words >> 4 * i & 15 for i in range(4)], axis=-1)
        codes = codes.transpose(0, 1, 4, 2, 5, 3).reshape(len(parts), 16, -1)
    else:  # [part, pair, column, half]
        codes = (
            parts.reshape(len(parts), 8, -1, 2).transpose(0, 1, 3, 2).reshape(len(parts), 16, -1)
        )
    return by_slot(numbers(codes[..., :dim], kv.dtype), kv, heads), by_slot(scales, kv, heads)


def split(raw: Array, kv: CpuKV, of: KVGroup) -> tuple[Array, Array]:
    """Codes [parts, bytes] and scales [parts, 16]."""
    kind = KV_TYPES[kv.dtype]
    each = kind.count_bytes(kv.group) - kind.count_bytes(replace(kv.group, v_in_k=True))
    each = each if of.k_dim == 0 else kind.count_bytes(of)
    parts = raw[:-64].reshape(-1, each // kv.group.heads * 16)
    return parts[:, :-64], np.ascontiguousarray(parts[:, -64:]).view(np.float32)


def by_slot(x: Array, kv: CpuKV, heads: int) -> Array:
    """[parts, 16, ...] -> [slots, heads, ...]: parts are [blocks, heads, block/16]."""
    rest = x.shape[2:]
    shaped = x.reshape(kv.blocks, heads, kv.block_size, *rest)
    return np.moveaxis(shaped, 1, 2).reshape(kv.blocks * kv.block_size, heads, *rest)


def numbers(codes: Array, dtype: str) -> Array:
    if dtype == "int8":
        return codes.astype(np.uint8).view(np.int8).astype(np.float64)
    if dtype == "int4":
        return 2.0 * codes - 15
    mantissa, bias = {"fp8_e4m3": (3, 7), "fp8_e5m2": (2, 15)}[dtype]
    size = (codes & 127).astype(np.float64)
    exponent, rest = size // 2**mantissa, size % 2**mantissa
    normal = np.ldexp(1 + rest / 2**mantissa, (exponent - bias).astype(int))
    assert not ((exponent == 0) & (rest > 0)).any(), "subnormals are not stored"
    return np.where(size == 0, 0, normal) * np.where(codes & 128, -1, 1)


@pytest.mark.parametrize("dtype", CODED)
def test_how_far_codes_are(dtype: str) -> None:
    """The bounds of docs/ops.md, rows of any size; zero and tiny rows are zero, others NaN."""
    rng = np.random.default_rng(0)
    x = normal(rng, 400, 64) * np.float32(10) ** rng.integers(-30, 30, (400, 1))
    x = np.concatenate([x.astype(np.float32), np.zeros((1, 64), np.float32)])
    numbers, scale = encode(x, dtype)
    error = np.abs(numbers * scale.astype(np.float64) - x)
    size, scale = np.abs(x), scale.astype(np.float64)
    bound = {
        "int8": scale * 0.5,
        "int4": scale * 1.0,
        "fp8_e4m3": np.maximum(size * 2.0**-4, scale * 2.0**-7),
        "fp8_e5m2": np.maximum(size * 2.0**-3, scale * 2.0**-15),
    }[dtype]
    assert (error <= bound * (1 + 1e-5)).all()
    tiny, infinite = np.full((1, 8), 1e-45, np.float32), np.full((1, 8), np.inf, np.float32)
    assert encode(tiny, dtype)[1] == 0 and np.isnan(encode(infinite, dtype)[1]).all()
    assert np.isfinite(encode(infinite, dtype)[0]).all()


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("make_layer", [make_kv_layer, ReferenceOps().make_kv_layer])
def test_layers_hold_what_the_plan_counts(dtype: str, make_layer: Make) -> None:
    bits = KV_TYPES[dtype].bits
    for group in (KVGroup(2, 128, 128), KVGroup(3, 40, 72), KVGroup(1, 576, 512, v_in_k=True)):
        kv = make_layer(group, 3, 32, dtype)
        assert kv.nbytes == 96 * KV_TYPES[dtype].count_bytes(group)
    assert KV_TYPES[dtype].count_bytes(KVGroup(2, 128, 128)) == 2 * (2 * 16 * bits + 8)


def test_refusals() -> None:
    for make_layer in (make_kv_layer, ReferenceOps().make_kv_layer):
        with pytest.raises(ConfigError, match="nearest valid: block_size = 32"):
            make_layer(KVGroup(1, 8, 8), 1, 24, "int8")
        with pytest.raises(ConfigError, match="heads of even size, this model's have 7"):
            make_layer(KVGroup(1, 7, 8), 1, 16, "fp8_e5m2")


def test_spellings() -> None:
    assert read_kv_type("fp8") == read_kv_type("fp8_e4m3") == "fp8_e4m3"
    assert [read_kv_type(x) for x in ("float16", "bfloat16", "float32")] == ["f16", "bf16", "f32"]
    assert read_kv_type("auto") == "auto" and read_kv_type("fp4") == "fp4"
