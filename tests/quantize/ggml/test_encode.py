"""Encoders of GGUF's types: read back, and no worse than llama.cpp's and the gguf package's."""

import numpy as np
import pytest

import filewriters
from flyweight.errors import ConfigError
from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.ggml.encode import BLOCKS, ENCODABLE, BlockEncoder
from flyweight.weights.formats import FORMATS
from flyweight.weights.formats.values import to_f32

# Squared errors over squared weights of ggml_quantize_chunk (llama-cpp-python 0.3.36), without and
# with an importance matrix, for `make_rows`; the second weighted by that importance.
LLAMA_CPP = {
    "q4_0": (0.007425, 0.006002),
    "q4_1": (0.006121, 0.004017),
    "q5_0": (0.001826, 0.001476),
    "q5_1": (0.001438, 0.0009408),
    "q8_0": (2.892e-05, 2.924e-05),
    "iq4_nl": (0.005849, 0.004937),
    "q2_k": (0.08818, 0.05512),
    "q3_k": (0.0227, 0.01793),
    "q4_k": (0.005087, 0.004139),
    "q5_k": (0.001307, 0.001079),
    "q6_k": (0.0003143, 0.0002597),
    "iq4_xs": (0.005946, 0.005046),
}


@pytest.fixture(scope="module")
def encoder() -> BlockEncoder:
    return BlockEncoder(2)


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(19)
    rows = (rng.standard_normal((64, 1024)) * 0.02).astype(np.float32)
    return rows, np.exp(rng.standard_normal(1024)).astype(np.float32)


def read_back(kind: str, raw: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    found = FORMATS[kind].parse(raw, shape)
    return found.dequantize() if isinstance(found, GroupedWeight) else to_f32(found)


def to_bits(rows: np.ndarray) -> np.ndarray:
    """bfloat16 bits, as another writer of ours rounds them."""
    return np.frombuffer(filewriters.encode(rows, "bf16")[2], np.uint16).reshape(rows.shape)


def error(found: np.ndarray, rows: np.ndarray, importance: np.ndarray | float = 1.0) -> float:
    wide = rows.astype(np.float64)
    off = (found - wide) ** 2 * importance
    return float(off.sum() / (wide**2 * importance).sum())


@pytest.mark.parametrize("kind", BLOCKS)
def test_no_worse_than_llama_cpp(kind: str, encoder: BlockEncoder) -> None:
    rows, importance = make_rows()
    plain = error(read_back(kind, encoder.encode(kind, rows), rows.shape), rows)
    raw = encoder.encode(kind, rows, importance)
    weighted = error(read_back(kind, raw, rows.shape), rows, importance)
    theirs = LLAMA_CPP[kind]
    assert plain < theirs[0]
    assert weighted < theirs[1]
    ignored = error(
        read_back(kind, encoder.encode(kind, rows), rows.shape), rows, importance
    )  # importance does something
    assert weighted < ignored


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_no_worse_than_the_gguf_package(kind: str, encoder: BlockEncoder) -> None:
    quants = pytest.importorskip("gguf.quants")
    code = pytest.importorskip("gguf.constants").GGMLQuantizationType[kind.upper()]
    rows = make_rows()[0]
    theirs = quants.dequantize(quants.quantize(rows, code), code)
    raw = encoder.encode(kind, rows)
    assert np.array_equal(quants.dequantize(raw, code), read_back(kind, raw, rows.shape))
    assert error(read_back(kind, raw, rows.shape), rows) < error(theirs, rows)


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_a_type_can_hold_is_kept(kind: str, encoder: BlockEncoder) -> None:
    """Values on the type's own grid, as another program wrote them, come back almost exactly."""
    rows = make_rows()[0]
    once = read_back(kind, encoder.encode(kind, rows), rows.shape)
    twice = read_back(kind, encoder.encode(kind, once), rows.shape)
    assert error(twice, once) < 0.05 * error(once, rows)


@pytest.mark.parametrize("kind", BLOCKS)
def test_odd_blocks(kind: str, encoder: BlockEncoder) -> None:
    """Zeros, equal values, one value, next to nothing: no NaN, as near as float16 scales are."""
    rows = np.zeros((5, 256), np.float32)
    rows[1], rows[2, 7], rows[3] = 0.7, -3.0, 1e-38
    rows[4, :128], rows[4, 128:] = 1e-4, -2.0
    found = read_back(kind, encoder.encode(kind, rows), rows.shape)
    assert np.isfinite(found).all()
    assert (found[0] == 0).all()
    assert np.allclose(found[1:3], rows[1:3], rtol=0.02, atol=0.03)
    assert np.abs(found[3]).max() < 1e-6
    assert np.allclose(found[4, 128:], -2.0, rtol=0.02)


def test_bytes_do_not_depend_on_threads_rows_or_input_type(encoder: BlockEncoder) -> None:
    rows, importance = make_rows()
    bits = to_bits(rows)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    for kind in BLOCKS:
        whole = encoder.encode(kind, wide, importance)
        assert np.array_equal(encoder.encode(kind, bits, importance), whole)
        assert np.array_equal(BlockEncoder(1).encode(kind, wide[5:8], importance), whole[5:8])
        assert encoder.encode(kind, wide[:0]).shape == (0, whole.shape[1])


def test_columns_without_importance_keep_a_little(encoder: BlockEncoder) -> None:
    rows = make_rows()[0]
    half = np.zeros(1024, np.float32)
    half[::2] = 5.0
    for kind in BLOCKS:
        found = read_back(kind, encoder.encode(kind, rows, half), rows.shape)
        assert error(found[:, 1::2], rows[:, 1::2]) < 0.3
        nothing = encoder.encode(kind, rows, np.zeros(1024, np.float32))
        assert np.array_equal(nothing, encoder.encode(kind, rows))


def test_dense_types_round_to_nearest(encoder: BlockEncoder) -> None:
    rows = make_rows()[0]
    assert np.array_equal(encoder.encode("f32", rows).view(np.float32), rows)
    assert np.array_equal(encoder.encode("f16", rows).view(np.float16), rows.astype(np.float16))
    expected = to_bits(rows)
    assert np.array_equal(encoder.encode("bf16", rows).view(np.uint16), expected)
    halves = rows.astype(np.float16)
    assert np.array_equal(encoder.encode("f16", halves).view(np.float16), halves)
    q8 = encoder.encode("q8_0", halves)
    assert np.array_equal(q8, encoder.encode("q8_0", halves.astype(np.float32)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e9])
@pytest.mark.parametrize("kind", ENCODABLE)
def test_values_that_do_not_fit_are_refused(kind: str, value: float, encoder: BlockEncoder) -> None:
    rows = np.ones((2, 256), np.float32)
    rows[1, 9] = value
    if value == 1e9 and kind in ("f32", "bf16"):
        encoder.encode(kind, rows)
        return
    with pytest.raises(ConfigError, match=r"not finite|do not fit"):
        encoder.encode(kind, rows)
    bits = to_bits(rows)
    with pytest.raises(ConfigError, match=r"not finite|do not fit"):
        encoder.encode(kind, bits)


def test_wrong_calls_are_refused(encoder: BlockEncoder) -> None:
    with pytest.raises(ValueError, match="no q4_k of rows of 32"):
        encoder.encode("q4_k", np.zeros((1, 32), np.float32))
    with pytest.raises(ValueError, match="no iq1_s"):
        encoder.encode("iq1_s", np.zeros((1, 256), np.float32))
    for bad in (np.nan, -1.0):
        with pytest.raises(ValueError, match="importance"):
            encoder.encode("q4_0", np.zeros((1, 32), np.float32), np.full(32, bad, np.float32))
