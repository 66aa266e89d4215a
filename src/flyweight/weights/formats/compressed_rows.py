"""Rows of compressed-tensors' matrices to `GroupedWeight` (`compressed` says what the tensors are).

Invariant: codes become the unsigned or signed ones of the kind claimed, scales stay as they are,
except for repeats of groups wider than kernels read.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import E2M1, GroupedWeight, WeightLayout, name_kind, widen
from flyweight.ops.tables import E4M3
from flyweight.validation.untrusted import shown
from flyweight.weights.formats.claims import (
    Part,
    Parts,
    check_finite,
    check_powers,
    find_group,
    raise_powers,
    read_positive,
    repeat_groups,
    sort_columns,
    unpack_codes,
    unpack_words,
)
from flyweight.wire import U8

MOST = float(np.finfo(np.float32).max)
NOTHING = 0x7F  # E4M3's code that is not a number, without its sign


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """Whole numbers or floats of 8 bits.  `group` columns share a scale, and `block_rows` rows, or
    all of them where there is a `single` scale.
    """

    where: str
    shape: tuple[int, int]
    bits: int
    floats: bool
    packed: bool
    symmetric: bool
    group: int
    block_rows: int
    single: bool
    scales: str
    ordered: bool
    static: bool

    @property
    def low(self) -> bool:
        """2 and 3 bits, whose kernels take zero points."""
        return not self.floats and self.bits < 4

    @property
    def held(self) -> int:
        """Bits of the kernels' codes."""
        return self.bits if self.bits <= 4 else 8

    @property
    def signed(self) -> bool:
        return not self.floats and self.symmetric and self.held == 8

    @property
    def by_row(self) -> bool:
        """One scale a row, which kernels take last."""
        return self.group == self.shape[1] and self.symmetric and not self.low

    @property
    def read(self) -> int:
        """The group that kernels read, or the published one where there is no such."""
        return 32 if self.by_row else find_group(self.group, self.shape[1]) or self.group

    @property
    def kind(self) -> str:
        zeros = not self.floats and (self.low or not self.symmetric)
        layout = WeightLayout(
            8 if self.floats else self.held,
            self.read,
            8 if not self.floats and self.symmetric and self.bits == 4 else 0,
            "int8" if self.signed else "uint8",
            "" if self.by_row else self.scales,
            values=E4M3 if self.floats else (),
            zeros="uint8" if zeros else "",
            row_scaled=self.by_row,
            ordered=self.ordered,
            static=self.static,
        )
        return name_kind(layout) or "bf16"

    def parse(self, parts: Parts, start: int, stop: int) -> GroupedWeight:
        self._check_shape(parts)
        if "input_zero" in parts and parts["input_zero"].all().any():
            raise CheckpointError(
                f"{self.where}: {shown(parts['input_zero'].name)} is not 0; activations have no "
                "zero points here"
            )
        inputs = read_positive(parts["input"], self.where) if "input" in parts else 0.0
        codes = self._read_codes(parts["codes"], start, stop)
        scales = self._read_scales(parts["scales"], start, stop)
        zeros = self._read_zeros(parts, (start, stop), scales.shape)
        columns = None
        if "order" in parts and (parts["order"].all() >= 0).all():
            columns = sort_columns(parts["order"], self.group, self.where)
            codes = np.take(codes, columns, axis=1)
        if not self.ordered and columns is not None and (np.diff(columns) != 1).any():
            raise CheckpointError(
                f"{self.where}: {shown(parts['order'].name)} puts columns in another order, but "
                "quantization_config has no actorder = group"
            )
        if self.ordered and columns is None:
            raise CheckpointError(f"{self.where}: {shown(parts['order'].name)} names group -1")
        if self.signed:
            half = np.uint8(1 << self.bits - 1) if self.packed else np.uint8(0)
            codes = (codes - half).view(np.int8)
        times = 1 if self.by_row else self.group // self.read
        return GroupedWeight(
            (stop - start, self.shape[1]),
            8 if self.floats else self.held,
            self.read,
            np.ascontiguousarray(codes),
            None if self.by_row else repeat_groups(scales, times),
            8 if self.symmetric and self.bits == 4 else 0,
            values=E4M3 if self.floats else (),
            zeros=None if zeros is None else repeat_groups(zeros, times),
            row_scales=widen(scales)[:, 0] if self.by_row else None,
            columns=columns if self.ordered else None,
            input_scale=inputs if self.static else 0.0,
        )

    def _check_shape(self, parts: Parts) -> None:
        if "shape" in parts and tuple(parts["shape"].all().tolist()) != self.shape:
            found = parts["shape"].all().tolist()
            raise CheckpointError(
                f"{self.where}: {shown(parts['shape'].name)} says {found}, the codes are of "
                f"{list(self.shape)}"
            )

    def _read_codes(self, part: Part, start: int, stop: int) -> U8:
        """Codes from 0, half their range added to signed ones that need zero points; E4M3's."""
        rows = part.rows(start, stop)
        if self.packed:
            return unpack_words(rows, self.bits, 1)
        codes = rows.view(np.uint8)
        if self.floats and (codes & NOTHING == NOTHING).any():
            raise CheckpointError(f"{self.where} has values that are not finite")
        return codes if self.floats or self.signed else codes ^ np.uint8(128)

    def _read_scales(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """[rows, groups]; exponents as float32."""
        found = self._spread_rows(part, start, stop)
        if found.dtype == np.uint8:
            return raise_powers(part, found, self.where)
        check_finite(part, found, self.where)
        return found

    def _spread_rows(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """The scales or zero points of rows, [rows, groups]."""
        shape = stop - start, self.shape[1] // self.group
        if self.single:
            return np.repeat(part.all().reshape(1, 1), shape[0], axis=0)
        if self.block_rows > 1:
            first, last = start // self.block_rows, -(-stop // self.block_rows)
            at = np.arange(start, stop) // self.block_rows - first
            return part.rows(first, last)[at].reshape(shape)
        return part.rows(start, stop).reshape(shape)

    def _read_zeros(
        self, parts: Parts, rows: tuple[int, int], shape: tuple[int, ...]
    ) -> NDArray[np.uint8] | None:
        """Zero points of codes from 0, [rows, groups]."""
        if self.symmetric:
            if "zeros" in parts and self._spread_rows(parts["zeros"], *rows).any():
                raise CheckpointError(
                    f"{self.where}: {shown(parts['zeros'].name)} holds zero points, but "
                    "quantization_config says symmetric"
                )
            return np.full(shape, 1 << self.bits - 1, np.uint8) if self.low else None
        start, stop = rows
        if self.packed:
            per = 32 // math.gcd(32, self.bits)  # rows whose zero points fill whole words
            first, last = start // per, -(-stop // per)
            words = parts["zeros"].rows(first * per * self.bits // 32, last * per * self.bits // 32)
            codes = unpack_codes(np.ascontiguousarray(words.T).view(np.uint8), self.bits)
            zeros = codes[:, start - first * per :][:, : stop - start].T
        else:
            zeros = self._spread_rows(parts["zeros"], start, stop).view(np.uint8) ^ np.uint8(128)
        return np.ascontiguousarray(zeros)


@dataclass(frozen=True, slots=True)
class Int4Floats:
    """E2M1 in groups of 16 with scales of E4M3 and a global one (NVFP4), which divides where it is
    the `inverse`; or in groups of 32 with exponents (MXFP4).
    """

    where: str
    two_levels: bool
    inverse: bool = True

    @property
    def kind(self) -> str:
        return "nvfp4_rows" if self.two_levels else "mxfp4"

    def parse(self, parts: Parts, start: int, stop: int) -> GroupedWeight:
        if "input" in parts:
            read_positive(parts["input"], self.where)
        packed = parts["codes"].rows(start, stop)
        codes = np.stack((packed & 15, packed >> 4), axis=-1)
        codes = codes.reshape(len(packed), 2 * packed.shape[1])
        scales = parts["scales"].rows(start, stop)
        if not self.two_levels:
            check_powers(parts["scales"], scales, self.where)
            return GroupedWeight(codes.shape, 4, 32, codes, scales, values=E2M1)
        if (scales & NOTHING == NOTHING).any():
            raise CheckpointError(
                f"{self.where}: tensor {shown(parts['scales'].name)} has values that are not finite"
            )
        halves = np.array(E4M3, np.float32)[scales].astype(np.float16)
        rows = np.full(len(codes), self._read_factor(parts["global"]), np.float32)
        return GroupedWeight(codes.shape, 4, 16, codes, halves, values=E2M1, row_scales=rows)

    def _read_factor(self, part: Part) -> float:
        """What rows are multiplied with: the table's values are doubled."""
        scale = read_positive(part, self.where)
        factor = 0.5 / scale if self.inverse else 0.5 * scale
        if not 0 < factor <= MOST:
            raise CheckpointError(
                f"{self.where}: {shown(part.name)} = {scale}; a scale above 0 expected"
            )
        return factor
