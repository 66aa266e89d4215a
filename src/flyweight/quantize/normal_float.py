"""NF4 and FP4 as bitsandbytes writes them (Dettmers et al., 2023: QLoRA), with absmax scales of
blocks that run on from row to row, and double quantisation of those scales.

Invariant: codes are the nearest of their table to w / absmax.  `weights/formats/bitsandbytes.py`
lists the tensors that hold all this in a file.
"""

from dataclasses import dataclass

import numpy as np

from flyweight.errors import ConfigError
from flyweight.ops.grouped import GroupedWeight
from flyweight.ops.tables import FP4, NF4
from flyweight.weights.formats.claims import find_group
from flyweight.wire import F32, U8

TABLES = {"nf4": NF4, "fp4": FP4}
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # elements, that bitsandbytes knows
NESTED = 256  # scales that share a scale of their own
EXPONENTS = 7  # of the table that scales are coded with
CHUNK = 1 << 20  # elements worked on at once, a multiple of every block
TINY = np.float32(1e-38)


@dataclass(frozen=True, slots=True)
class NestedScales:
    """Scales of blocks, quantised: absmax = table[codes] * scales of 256 codes + offset."""

    codes: U8
    scales: F32
    offset: float
    table: F32

    def dequantize(self) -> F32:
        """float32 [blocks]."""
        each = np.repeat(self.scales, NESTED)[: len(self.codes)]
        found: F32 = self.table[self.codes] * each + np.float32(self.offset)
        return found


@dataclass(frozen=True, slots=True)
class BlockFloats:
    """A matrix in blocks of `block` elements: `codes` [N, K] of `table` ("nf4", "fp4") and `absmax`
    [blocks], which `nested` holds too where scales are quantised: absmax is then what it gives.
    """

    table: str
    block: int
    codes: U8
    absmax: F32
    nested: NestedScales | None = None

    def pack(self) -> U8:
        """[N K / 2] bytes, the first of two codes in the high half; odd counts end with a 0."""
        flat = self.codes.reshape(-1)
        if len(flat) % 2:
            flat = np.append(flat, np.uint8(0))
        found: U8 = flat[0::2] << np.uint8(4) | flat[1::2]
        return found

    def group(self) -> GroupedWeight:
        """The same weight, with the groups that the reader of such a file gives it."""
        n, k = self.codes.shape
        group = find_group(self.block, k) or 1
        scales = np.repeat(self.absmax, self.block // group)[: n * k // group].reshape(n, -1)
        return GroupedWeight((n, k), 4, group, self.codes, scales, values=TABLES[self.table])


def round_to_floats(
    rows: F32, table: str = "nf4", block: int = 64, double: bool = False
) -> BlockFloats:
    """A whole matrix [N, K] in codes of `table`; with `double`, scales are quantised too.  Raises
    `ConfigError` for a block that bitsandbytes does not know.
    """
    if block not in BLOCKS:
        nearest = min(BLOCKS, key=lambda b: abs(b - block))
        raise ConfigError(
            "is not valid", "group_size", value=block, allowed=", ".join(map(str, BLOCKS)),
            hint=f"nearest valid: {nearest}",
        )  # fmt: skip
    flat = np.ascontiguousarray(rows).reshape(-1)
    codes, absmax = np.empty(flat.size, np.uint8), np.empty(-(-flat.size // block), np.float32)
    for first in range(0, flat.size, CHUNK):
        part = flat[first : first + CHUNK]
        scales = _measure_blocks(part, block)
        absmax[first // block :][: len(scales)] = scales
        codes[first : first + CHUNK] = _choose_codes(_divide(part, scales, block), table)
    nested = nest_scales(absmax) if double else None
    return BlockFloats(
        table, block, codes.reshape(rows.shape), nested.dequantize() if nested else absmax, nested
    )


def nest_scales(absmax: F32) -> NestedScales:
    """Scales [blocks] less their mean, in codes of the dynamic table."""
    offset = np.float32(absmax.mean(dtype=np.float64))
    rest, table = absmax - offset, make_dynamic_table()
    scales = _measure_blocks(rest, NESTED)
    shares = _divide(rest, scales, NESTED)
    codes = np.searchsorted(_find_middles(table), shares, side="left").astype(np.uint8)
    return NestedScales(codes, scales, float(offset), table)


def make_dynamic_table() -> F32:
    """The 256 values of dynamic codes (Dettmers, 2015): seven powers of 10, each with twice as many
    evenly spaced fractions between a tenth and 1 as the one below, of both signs; 0 and 1.
    """
    values = [0.0, 1.0]
    for i in range(EXPONENTS):
        middles = _find_middles(_space_evenly(2**i + 1))
        sized = (np.float32(10.0 ** (i - EXPONENTS + 1)) * middles).tolist()
        values += [*sized, *(-x for x in sized)]
    return np.sort(np.array(values, np.float32))


def _space_evenly(count: int) -> F32:
    """Numbers from 0.1 to 1, rounded as the library's: a float32 step, counted from both ends."""
    low, high = np.float32(0.1), np.float32(1)
    step = np.float64((high - low) / np.float32(count - 1))
    i = np.arange(count)
    found = np.where(i < count // 2, low + step * i, high - step * (count - 1 - i))
    return found.astype(np.float32)


def _measure_blocks(flat: F32, block: int) -> F32:
    """The largest magnitude of each block; the last may be shorter."""
    found: F32 = np.maximum.reduceat(np.abs(flat), np.arange(0, len(flat), block))
    return found


def _divide(flat: F32, scales: F32, block: int) -> F32:
    """Elements as shares of their block's scale, through its inverse, as the library does."""
    inverse = np.float32(1) / np.maximum(scales, TINY)
    return np.clip(flat * np.repeat(inverse, block)[: len(flat)], -1, 1)


def _choose_codes(shares: F32, table: str) -> U8:
    """The code of the nearest value; halfway between two, the lower value's."""
    values = np.array(TABLES[table], np.float32)
    order = np.argsort(values, kind="stable")
    if table == "fp4":
        order[7:9] = 8, 0  # of its two zeros the negative one is lower
    places = np.searchsorted(_find_middles(values[order]), shares, side="left")
    found: U8 = order.astype(np.uint8)[places]
    return found


def _find_middles(values: F32) -> F32:
    """Halfway between neighbours."""
    found: F32 = (values[:-1] + values[1:]) / np.float32(2)
    return found
