"""The parsers against ggml's definitions: committed fixtures made with the `gguf` package, of
random blocks and of blocks that llama.cpp wrote, and the package itself where it is installed.
"""

from pathlib import Path

import numpy as np
import pytest

from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.formats import FORMATS
from flyweight.weights.gguf import READABLE

DATA = Path(__file__).parent.parent / "data"
FIXTURES = (DATA / "weights" / "ggml_blocks.npz", DATA / "llama_cpp" / "written_blocks.npz")
KINDS = tuple(kind for kind, form in FORMATS.items() if form.quantised)


def parse(kind: str, raw: np.ndarray, shape: tuple[int, int]) -> GroupedWeight:
    found = FORMATS[kind].parse(raw, shape)
    assert isinstance(found, GroupedWeight)
    return found


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Zeros of the same sign too; any NaN is equal to any."""
    numbers = ~np.isnan(a)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(
        np.signbit(a[numbers]), np.signbit(b[numbers])
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_equals_the_committed_definition(path: Path, kind: str) -> None:
    with np.load(path) as fixture:
        raw, expected = fixture[f"{kind}_bytes"], fixture[f"{kind}_values"]
    found = parse(kind, raw.reshape(-1), expected.shape)
    assert found.kind == FORMATS[kind].packed
    with np.errstate(over="ignore"):  # MXFP4's largest scale times its table
        assert same_bits(found.dequantize(), expected)


def test_every_type_the_gguf_package_can_dequantise_is_read() -> None:
    quants = pytest.importorskip("gguf.quants")
    known = {code.name.lower() for code in quants._type_traits} | {"f32", "f16"}
    assert known == set(FORMATS) == set(READABLE.values())
    assert {code.value for code in quants._type_traits} | {0, 1} == set(READABLE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 256), (3, 512), (7, 1280), (0, 256)], ids=str)
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
    assert same_bits(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_parsers_copy_and_stay_small(kind: str) -> None:
    form = FORMATS[kind]
    shape = (64, 512)
    raw = np.zeros(form.count_bytes(shape), np.uint8)
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
