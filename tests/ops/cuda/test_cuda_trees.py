"""Trees on the device: a token has the bits of its path as a plain draft."""

import pytest
from tree_cases import check_tree, make_case

from flyweight.ops.cuda import CudaOps, attention
from flyweight.ops.cuda.attention import Tiles, TileShape
from flyweight.spec import KVGroup

SMALL = Tiles(16, 16, 32, 32, TileShape(16, 4, 1), TileShape(16, 4, 1), TileShape(32, 4, 1))


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_bits_are_those_of_the_path(
    device: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":  # the interpreter is slow
        monkeypatch.setattr(attention, "CONFIG", dict.fromkeys(attention.CONFIG, SMALL))
    check_tree(CudaOps(device, "bf16"), make_case(KVGroup(2, 16, 16), 2), dtype)
