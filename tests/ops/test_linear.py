"""`pack`, `linear` and `embed` of the CPU backend against float64 NumPy, on every instruction set.

The reference is written out again from the definitions: dequantised weight times rounded
activations in float64.  Stated bound: an output errs by at most `rounds` * 2^-24 * sum |w x|,
`rounds` being how often its sum is rounded.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.ops.base import DENSE_KINDS, Array, from_bf16_bits, to_bf16_bits
from flyweight.ops.grouped import GroupedWeight, count_block, find_base
from flyweight.weights.formats import FORMATS
from flyweight.wire import F32
from grouped_weights import GROUPED, random_grouped, reach

_native = pytest.importorskip("flyweight._native")
from flyweight.ops.cpu.gemm import Gemm, PackedWeight  # noqa: E402

Part = GroupedWeight | Array
KINDS = ("f32", "f16", "bf16", *GROUPED)
PAIRS = ("bf16", "nf4", "fp4", "e4m3", "e5m2")  # what products in bf16 read themselves
ACTIVATIONS = ("f32", "bf16", "int8")
ISAS = _native.isas()
OPENED = 1.4 * 2.0**-8  # of a weight that is opened to bf16, at most


def block(kind: str) -> int:
    return count_block(kind)


def make(kind: str, n: int, k: int, rng: np.random.Generator) -> Part:
    """A random canonical part [n,k] that uses every code, signed scales and extreme sub-scales."""
    if kind in ("f32", "f16", "bf16"):
        w = rng.standard_normal((n, k)).astype(np.float32)
        return {"f32": w, "f16": w.astype(np.float16), "bf16": to_bf16_bits(w)}[kind]
    return random_grouped(rng, kind, n, k)


def floats(part: Part) -> F32:
    if isinstance(part, GroupedWeight):
        return part.dequantize()
    return from_bf16_bits(part) if part.dtype == np.uint16 else part.astype(np.float32)


def rows(part: Part, a: int, b: int) -> Part:
    return part.take(slice(a, b)) if isinstance(part, GroupedWeight) else part[a:b]


def seen(x: F32, activations: str, part: Part) -> NDArray[np.float64]:
    """What the product multiplies with, from the definition in docs/ops.md, in x's own order."""
    kind = part.kind if isinstance(part, GroupedWeight) else DENSE_KINDS[part.dtype.name]
    if activations == "bf16" or (activations == "int8" and find_base(kind) in PAIRS):
        return from_bf16_bits(to_bf16_bits(x)).astype(np.float64)
    if activations == "f32" or not isinstance(part, GroupedWeight):
        return x.astype(np.float64)
    if part.input_scale:
        scale = np.float32(part.input_scale)
        return np.clip(np.rint(x / scale), -127, 127).astype(np.float64) * scale
    order = np.arange(x.shape[1]) if part.columns is None else part.columns
    groups = x[:, order].reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.float32(127) / amax
        usable = np.isfinite(inverse) & (inverse > 0)
        codes = np.where(usable, np.rint(groups * inverse), 0).astype(np.float64)
    scaled = codes * np.where(usable, amax / np.float32(127), 0).astype(np.float64)
    return scaled.reshape(x.shape)[:, np.argsort(order)]


def factors(part: Part, activations: str) -> NDArray[np.float64]:
    """What x is multiplied with: the weight's values, but tables of floats in bf16."""
    if isinstance(part, GroupedWeight) and find_base(part.kind) in PAIRS and activations != "f32":
        table = from_bf16_bits(to_bf16_bits(np.array(part.values, np.float32)))
        part = replace(part, values=tuple(map(float, table)))
    return floats(part).astype(np.float64)


def gemm(isa: str = "", activations: str = "f32", threads: int = 2) -> Gemm:
    return Gemm(_native.Pool(threads, isa), activations)


def tokens(t: int, k: int, rng: np.random.Generator) -> F32:
    x = rng.standard_normal((t, k)) * np.exp(rng.standard_normal((t, 1)))
    return x.astype(np.float32)


def packed(g: Gemm, part: Part, bias: F32 | None = None) -> PackedWeight:
    return g.pack(part.shape, [part], bias)


Product = tuple[Part, F32 | None, F32, NDArray[np.float64], NDArray[np.float64]]


@lru_cache(8)  # the instruction sets follow each other
def expected(activations: str, kind: str, t: int, n: int, k: int) -> Product:
    """A weight and its bias, tokens, their product in float64 and its bound."""
    rng = np.random.default_rng(t + 1000 * n + k)
    part, x = make(kind, n, k, rng), tokens(t, k, rng)
    bias = rng.standard_normal(n).astype(np.float32) if n % 2 else None
    w, a = factors(part, activations), seen(x, activations, part)
    want = a @ w.T + (0 if bias is None else bias)
    # A group of the int8 product takes up to four roundings, an element of the others one; the
    # scales and the bias a few more.  With minima two terms are summed: they must not cancel here.
    size = reach(part) if isinstance(part, GroupedWeight) else np.abs(w)
    bound = (k + 8) * 2.0**-24 * (np.abs(a) @ size.T + (0 if bias is None else np.abs(bias)))
    return part, bias, x, want, bound


def check_product(isa: str, activations: str, kind: str, shape: tuple[int, int, int]) -> None:
    t, n, k = shape
    part, bias, x, want, bound = expected(activations, kind, t, n, k)
    g = gemm(isa, activations)
    if _native.Pool(1, isa).opens_pairs and activations == "bf16" and kind in GROUPED:
        size = reach(part) if isinstance(part, GroupedWeight) else np.abs(floats(part))
        bound = bound + OPENED * (np.abs(seen(x, "bf16", part)) @ size.T)
    got = g.linear(x, packed(g, part, bias))
    assert got.shape == (t, n) and got.dtype == np.float32
    assert (np.abs(got - want) <= bound + 1e-30).all(), (
        f"worst {np.max(np.abs(got - want) / (bound + 1e-30))} of the bound"
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
def test_long_sums_keep_their_digits(isa: str, kind: str) -> None:
    """A sum of 4,096 products that walks K in one accumulator errs by five times as much."""
    rng, g = np.random.default_rng(4), gemm(isa)
    part, x = make(kind, 32, 4096, rng), rng.standard_normal((9, 4096)).astype(np.float32)
    want = x.astype(np.float64) @ floats(part).astype(np.float64).T
    for some in (x, x[:1]):  # panels of tokens, and few
        got = g.linear(some, packed(g, part))
        rms = np.sqrt(np.square(got - want[: len(some)]).mean() / np.square(want).mean())
        assert rms <= 8 * 2.0**-24


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_product_equals_float64(isa: str, activations: str, kind: str) -> None:
    for t, n, k in ((1, 16, 256), (3, 172, 512), (7, 33, 256), (14, 15, 768)):
        check_product(isa, activations, kind, (t, n, k))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(ISAS), st.sampled_from(ACTIVATIONS), st.sampled_from(KINDS),
    st.integers(1, 20), st.integers(1, 70), st.integers(1, 150),
)  # fmt: skip
def test_any_shape(isa: str, activations: str, kind: str, t: int, n: int, k: int) -> None:
    step = block(kind)
    check_product(isa, activations, kind, (t, n, k if step == 1 else max(1, k * 8 // step) * step))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_know_each_other(
    isa: str, activations: str, kind: str, at_length: bool
) -> None:
    """Any number of tokens, any number of threads, any place in the weight: the same bits.

    `scalar` takes a hundred times as long as the others: it has a weight of four tiles, not 11.
    """
    rng = np.random.default_rng(7)
    n, k = 172 if at_length or isa != "scalar" else 60, 512 if block(kind) > 1 else 333
    part, x = make(kind, n, k, rng), tokens(70, k, rng)
    alone = gemm(isa, activations, 1)
    w = packed(alone, part)
    want = np.concatenate([alone.linear(x[t : t + 1], w) for t in range(70)])
    for threads in (1, 2, 3, 7):
        g = gemm(isa, activations, threads)
        few = (1, 2, 3, 8, 15, 31, 70)  # of tokens: on either side of every panel's edge
        some = (*range(1, 16), 31, 48, 69, 70) if at_length else few
        for t in (70,) if threads != 2 else some:
            assert np.array_equal(g.linear(x[:t], w), want[:t]), (threads, t)
            assert np.array_equal(g.linear(x[70 - t :], w), want[70 - t :]), (threads, t)
    for edge in (1, 15, 16, 17, n - 20):  # the same rows elsewhere in a tile, next to others
        moved = packed(alone, rows(part, edge, n))
        assert np.array_equal(alone.linear(x[:9], moved), want[:9, edge:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q4_k", "q6_k", "bf16"])
def test_sums_that_rest_between_stretches_keep_their_bits(isa: str, kind: str) -> None:
    """Long rows and many tokens: kernels leave sums in the result and go on from there."""
    rng = np.random.default_rng(13)
    part, x = make(kind, 40, 4608, rng), tokens(70, 4608, rng)
    g = gemm(isa, "int8")
    w = packed(g, part)
    alone = np.concatenate([g.linear(x[t : t + 1], w) for t in range(70)])
    assert np.array_equal(g.linear(x, w), alone)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_of_an_odd_number_of_groups(isa: str) -> None:
    rng = np.random.default_rng(17)
    part, x = make("q4_0", 40, 5 * 32, rng), tokens(40, 5 * 32, rng)
    g = gemm(isa, "int8")
    w = packed(g, part)
    alone = np.concatenate([g.linear(x[t : t + 1], w) for t in range(40)])
    assert np.array_equal(g.linear(x, w), alone)


def test_a_large_result_in_use_is_not_overwritten() -> None:
    rng = np.random.default_rng(19)
    part, x = make("q8_0", 5000, 32, rng), tokens(2 * 64, 32, rng)  # 1.3 MB a result
    g = gemm()
    w = packed(g, part)
    first = g.linear(x[:64], w)
    held, kept = first[3:5], first[3:5].copy()
    del first
    g.linear(x[64:], w)
    assert np.array_equal(held, kept)
    again = g.linear(x[:64], w)
    assert np.array_equal(again[3:5], kept) and not np.shares_memory(again, held)


@pytest.mark.parametrize("kind", [k for k in GROUPED if find_base(k) not in PAIRS])
def test_int8_products_are_the_same_on_every_target(kind: str) -> None:
    rng = np.random.default_rng(11)
    part, x = make(kind, 50, 512, rng), tokens(9, 512, rng)
    outs = [g.linear(x, packed(g, part)) for g in (gemm(isa, "int8") for isa in ISAS)]
    assert all(np.array_equal(out, outs[0]) for out in outs[1:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [k for k in GROUPED if find_base(k) in PAIRS])
def test_every_code_of_floats_is_opened_exactly(isa: str, kind: str) -> None:
    rng = np.random.default_rng(17)
    part = make(kind, 48, 256, rng)
    g, units = gemm(isa, "bf16"), np.eye(256, dtype=np.float32)
    weight, want = packed(g, part), factors(part, "bf16").T.astype(np.float32)
    assert np.array_equal(g.linear(units, weight), want)
    assert all(np.array_equal(g.linear(units[i : i + 1], weight)[0], want[i]) for i in range(256))


@pytest.mark.parametrize("isa", [isa for isa in ISAS if _native.Pool(1, isa).opens_pairs])
@pytest.mark.parametrize("kind", [k for k in GROUPED if find_base(k) not in PAIRS])
def test_every_weight_is_opened_to_bf16_within_its_bound(isa: str, kind: str) -> None:
    """Unit vectors give the opened weights themselves; a 0 may become 2^-31 of the largest."""
    part = make(kind, 48, 256, np.random.default_rng(17))
    assert isinstance(part, GroupedWeight)
    g, size = gemm(isa, "bf16"), reach(part)
    got = g.linear(np.eye(256, dtype=np.float32), packed(g, part)).T
    assert (np.abs(got - floats(part)) <= OPENED * size + 2.0**-22 * size.max()).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_embed_is_exact(isa: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    k = 512 if block(kind) > 1 else 77
    part = make(kind, 45, k, rng)
    g = gemm(isa)
    ids = rng.integers(0, 45, 30).astype(np.int32)
    assert np.array_equal(g.embed(packed(g, part), ids), floats(part)[ids])


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_any_size_make_one_weight(kind: str) -> None:
    rng = np.random.default_rng(5)
    part, g = make(kind, 61, 512, rng), gemm()
    cuts = [0, 1, 16, 33, 33, 60, 61]
    whole = g.pack((61, 512), (rows(part, a, b) for a, b in pairwise(cuts)))
    assert np.array_equal(g.embed(whole, np.arange(61, dtype=np.int32)), floats(part))
    assert whole.kind == kind and whole.nbytes == g.count_packed_bytes((61, 512), kind)


# What is packed as something else, or has its scales widened, is larger than its file.
EXPANDED = {"nvfp4": 1.12, "iq3_s": 2.51, "iq3_xxs": 2.82, "iq2_s": 3.37, "iq2_xs": 3.73}
EXPANDED |= {"iq2_xxs": 4.19, "iq1_m": 4.93, "iq1_s": 5.52, "tq2_0": 4.19, "tq1_0": 5.12}


@pytest.mark.parametrize("kind", FORMATS)
def test_packed_bytes_next_to_the_file(kind: str) -> None:
    form = FORMATS[kind]
    packed = gemm().count_packed_bytes((64, 512), form.packed)
    assert packed <= EXPANDED.get(kind, 1.05) * form.count_bytes((64, 512))


def test_tuple_outputs_are_side_by_side() -> None:
    rng = np.random.default_rng(9)
    g = gemm(activations="int8")
    parts = [make(kind, n, 256, rng) for kind, n in (("q4_k", 33), ("q6_k", 16), ("f32", 5))]
    weights = tuple(packed(g, part) for part in parts)
    x = tokens(4, 256, rng)
    assert np.array_equal(
        g.linear(x, weights), np.concatenate([g.linear(x, w) for w in weights], axis=1)
    )


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_activations(isa: str) -> None:
    """All-zero, tiny, huge and non-finite groups round as the definition says."""
    rng = np.random.default_rng(13)
    x = tokens(1, 160, rng)
    x[0, :32], x[0, 32:64], x[0, 64:96], x[0, 96] = 0, 1e-40, 1e30, np.inf
    part, g = make("q8_0", 16, 160, rng), gemm(isa, "int8")
    got = g.linear(x, packed(g, part))
    want = seen(x, "int8", part) @ floats(part).astype(np.float64).T
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_wrong_weights_are_refused() -> None:
    rng = np.random.default_rng(1)
    g = gemm()
    q4, q8 = make("q4_0", 16, 64, rng), make("q8_0", 16, 64, rng)
    assert isinstance(q4, GroupedWeight)
    for shape, parts, message in (
        ((32, 64), [q4, q8], "one kind"),
        ((17, 64), [q4], "16 rows where 17"),
        ((15, 64), [q4], "at row 0"),
        ((16, 32), [q4], "at row 0"),
        ((16, 64), [], "0 rows"),
        ((16, 64), [replace(q4, zero=7)], "no kernel"),
        ((16, 64), [np.zeros((16, 64))], "float64"),
    ):
        with pytest.raises(CheckpointError, match=message):
            g.pack(shape, parts)
