"""The parsers against ggml's definitions: a committed fixture made with the `gguf` package, and the
package itself where it is installed.
"""

from pathlib import Path

import numpy as np
import pytest

from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.formats import FORMATS

FIXTURE = Path(__file__).parent.parent / "data" / "weights" / "ggml_blocks.npz"
KINDS = ("q8_0", "q4_0", "q4_k", "q6_k")


def parse(kind: str, raw: np.ndarray, shape: tuple[int, int]) -> GroupedWeight:
    found = FORMATS[kind].parse(raw, shape)
    assert isinstance(found, GroupedWeight)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_committed_definition(kind: str) -> None:
    with np.load(FIXTURE) as fixture:
        raw, expected = fixture[f"{kind}_bytes"], fixture[f"{kind}_values"]
    found = parse(kind, raw.reshape(-1), expected.shape)
    assert found.kind == kind
    assert np.array_equal(found.dequantize(), expected)
    assert np.array_equal(np.signbit(found.dequantize()), np.signbit(expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 256), (3, 512), (7, 1280), (0, 256)])
def test_equals_the_gguf_package_on_random_blocks(kind: str, shape: tuple[int, int]) -> None:
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    rng = np.random.default_rng(hash(shape) % 1000)
    form = FORMATS[kind]
    raw = rng.integers(0, 256, (shape[0], shape[1] // form.block * form.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random scales include infinities and NaN
        found = parse(kind, raw.reshape(-1), shape).dequantize()
        if shape[0] == 0:
            assert found.shape == shape
            return
        expected = quants.dequantize(raw, constants.GGMLQuantizationType[kind.upper()])
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_parsers_copy_and_stay_small(kind: str) -> None:
    form = FORMATS[kind]
    shape = (64, 512)
    raw = np.zeros(form.bytes_for(shape), np.uint8)
    found = parse(kind, raw, shape)
    arrays = [found.codes, found.scales, found.super_scales, found.mins, found.super_mins]
    held = [a for a in arrays if a is not None]
    assert not any(np.shares_memory(a, raw) for a in held)
    assert all(a.flags.c_contiguous for a in held)
    assert sum(a.nbytes for a in held) == int(64 * 512 / form.block * form.canonical)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", "<f4"), ("f16", "<f2"), ("bf16", "<u2")])
def test_dense_rows_are_copied_bit_for_bit_from_any_address(kind: str, dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, 6 * 10 * int(dtype[2]), dtype=np.uint8)
    shifted = np.concatenate([np.zeros(1, np.uint8), values])[1:]  # not aligned
    found = FORMATS[kind].parse(shifted, (6, 10))
    assert isinstance(found, np.ndarray)
    assert found.shape == (6, 10) and found.dtype == np.dtype(dtype)
    assert found.tobytes() == values.tobytes()
    assert not np.shares_memory(found, shifted)
