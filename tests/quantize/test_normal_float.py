"""NF4 and FP4 against what bitsandbytes made of the same matrix (make_fixtures.py)."""

from pathlib import Path

import numpy as np
import pytest

from flyweight.errors import ConfigError
from flyweight.ops.tables import FP4, NF4
from flyweight.quantize.normal_float import (
    TABLES,
    BlockFloats,
    make_dynamic_table,
    round_to_floats,
)
from flyweight.wire import F32, U8

STORED = np.load(Path(__file__).parents[1] / "data" / "quantize" / "libraries.npz")
WEIGHTS: F32 = STORED["weights"].astype(np.float32)
ODD: F32 = WEIGHTS.reshape(-1)[: 33 * 70].reshape(33, 70)
CASES = [("", WEIGHTS, 32), (" odd", ODD, 64)]


def unpacked(found: U8) -> U8:
    both: U8 = np.stack([found >> 4, found & 15], axis=1).reshape(-1)
    return both


@pytest.mark.parametrize(("form", "w", "block"), CASES)
@pytest.mark.parametrize("table", TABLES)
def test_codes_and_scales_are_those_of_bitsandbytes(
    table: str, form: str, w: F32, block: int
) -> None:
    """FP4 has two zeros, of which the library takes another."""
    found = round_to_floats(w, table, block)
    assert (found.absmax == STORED[f"{table}{form} absmax"]).all()
    ours, theirs = unpacked(found.pack()), unpacked(STORED[f"{table}{form} bytes"])
    assert len(ours) == len(theirs)
    values = np.array(TABLES[table], np.float32)
    assert (values[ours] == values[theirs]).all()
    assert table == "fp4" or (ours == theirs).all()


@pytest.mark.parametrize(("form", "w", "block"), CASES)
def test_double_quantisation_is_that_of_bitsandbytes(form: str, w: F32, block: int) -> None:
    """The library's search of a code stops near the middle of two values: ours is as near, or
    nearer, and the same except for one in a hundred.
    """
    nested = round_to_floats(w, "nf4", block, double=True).nested
    assert nested is not None
    assert (nested.table == STORED["table"]).all()
    offset = STORED[f"nf4{form} offset"]
    assert abs(nested.offset - float(offset)) <= np.spacing(offset)
    assert np.allclose(nested.scales, STORED[f"nf4{form} nested scales"], rtol=0, atol=1e-8)
    theirs = STORED[f"nf4{form} nested codes"]
    assert (nested.codes == theirs).mean() >= 0.99
    absmax = STORED[f"nf4{form} absmax"]
    each = np.repeat(nested.scales, 256)[: len(theirs)]
    shares = (absmax - np.float32(nested.offset)) / each
    ours_off = np.abs(shares - nested.table[nested.codes])
    assert (ours_off <= np.abs(shares - nested.table[theirs]) + 1e-6).all()
    assert (nested.dequantize() == nested.table[nested.codes] * each + offset).all()


def test_every_code_is_the_nearest() -> None:
    """A search over all values, in float64."""
    for table, values in (("nf4", NF4), ("fp4", FP4)):
        found = round_to_floats(WEIGHTS, table, 64)
        shares = WEIGHTS.reshape(-1, 64) / np.maximum(found.absmax, 1e-30)[:, None]
        off = np.abs(shares.reshape(-1, 1) - np.array(values))
        chosen = off[np.arange(len(off)), found.codes.reshape(-1)]
        assert (chosen <= off.min(axis=1) + 1e-7).all()


@pytest.mark.parametrize("double", [False, True])
def test_the_weight_is_the_one_that_codes_stand_for(double: bool) -> None:
    """Blocks of 64 that run on from row to row become groups that kernels read, or single scales
    where there are none.
    """
    for w, group in ((WEIGHTS, 64), (ODD, 1)):
        found = round_to_floats(w, "nf4", 64, double)
        weight = found.group()
        scales = np.repeat(found.absmax, 64)[: w.size].reshape(w.shape)
        assert (weight.dequantize() == scales * np.array(NF4, np.float32)[found.codes]).all()
        assert weight.group == group
        assert np.abs(weight.dequantize() - w).mean() < 0.15 * np.abs(w).mean()
    assert round_to_floats(WEIGHTS, "nf4", 64, double).group().kind == "nf4_g64_f32"


def test_blocks_are_those_the_library_knows() -> None:
    with pytest.raises(ConfigError, match=r"group_size = 100 .*nearest valid: 128"):
        round_to_floats(WEIGHTS, "nf4", 100)


def test_an_odd_count_of_codes_ends_with_half_a_byte() -> None:
    codes = np.array([[1, 2, 3]], np.uint8)
    held = BlockFloats("nf4", 64, codes, np.ones(1, np.float32))
    assert held.pack().tolist() == [0x12, 0x30]


def test_the_dynamic_table_has_both_signs_but_for_1() -> None:
    table = make_dynamic_table()
    assert (np.diff(table) > 0).all() and len(table) == 256
    assert table[-1] == 1 and 0 in table
    rest = np.setdiff1d(table, [0, 1])
    assert (rest == -rest[::-1]).all()
