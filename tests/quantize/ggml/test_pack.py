"""Packing is the inverse of parsing, byte for byte: on blocks that llama.cpp wrote, and on ours."""

from pathlib import Path

import numpy as np
import pytest

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.ggml.encode import BLOCKS, BlockEncoder
from flyweight.quantize.ggml.pack import PACKERS, pack
from flyweight.weights.formats import FORMATS

DATA = Path(__file__).parents[2] / "data"
FIXTURES = (DATA / "weights" / "ggml_blocks.npz", DATA / "llama_cpp" / "written_blocks.npz")


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_packs_what_was_parsed(path: Path, kind: str) -> None:
    with np.load(path) as fixture:
        raw, shape = fixture[f"{kind}_bytes"], fixture[f"{kind}_values"].shape
    parsed = FORMATS[kind].parse(raw.reshape(-1), shape)
    assert isinstance(parsed, GroupedWeight)
    assert np.array_equal(pack(parsed), raw.reshape(len(raw), -1).reshape(shape[0], -1))


@pytest.mark.parametrize("kind", BLOCKS)
def test_native_packing_is_the_same(kind: str) -> None:
    rows = np.random.default_rng(3).standard_normal((9, 768)).astype(np.float32)
    raw = BlockEncoder(1).encode(kind, rows)
    parsed = FORMATS[kind].parse(raw, rows.shape)
    assert isinstance(parsed, GroupedWeight)
    assert np.array_equal(pack(parsed), raw)


def test_layouts_without_a_type_are_refused() -> None:
    codes, scales = np.zeros((2, 64), np.uint8), np.ones((2, 1), np.float16)
    with pytest.raises(ValueError, match="GGUF has no type for s4_g64"):
        pack(GroupedWeight((2, 64), 4, 64, codes, scales, zero=8))
