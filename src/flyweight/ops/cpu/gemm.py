"""Weights in 16-row tiles and the products over them: pack, linear, heads, experts, embed.

Invariant: an output row's bits depend on that row of x and the weight alone; the kernels fix the
order of every sum (native/gemm_tile.h).  Every layout of ops/grouped.py has a kernel.  Nothing here
knows models or files.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyweight import _native
from flyweight.errors import CheckpointError
from flyweight.ops.base import Array, Part, choose_rounding
from flyweight.ops.grouped import (
    BlockRows,
    GroupedWeight,
    find_base,
)
from flyweight.ops.operands import Weights
from flyweight.ops.parts import check_columns, find_part_kind
from flyweight.wire import F32, I32, U8

LARGE = 1 << 18  # bytes of a result whose memory is kept: one row of a large vocabulary has more
OURS = 2  # references to an array that only its owner holds: the attribute, and the question
MODES = {"f32": 0, "bf16": 1, "int8": 2}
OPENED = 3  # bf16, with weights opened to bf16

Chosen = tuple[I32, F32]  # ids and weights, [T,k]
Matrices = tuple[Sequence[Weights], Sequence[Weights]]  # up and down, one an expert


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix [N,K] in the tiles of native/kernels_gemm.h, and its bias."""

    shape: tuple[int, int]
    kind: str
    tiles: _native.Tiles
    bias: F32 | None = None

    @property
    def nbytes(self) -> int:
        return int(self.tiles.nbytes) + (0 if self.bias is None else self.bias.nbytes)


def choose_mode(activations: str, base: str, opens: bool) -> int:
    """How the kernels multiply with weights of a kind; `opens`: its codes may be opened to bf16."""
    rounding = choose_rounding(activations, base)
    whole_codes = choose_rounding("int8", base) == "int8"
    return OPENED if opens and rounding == "bf16" and whole_codes else MODES[rounding]


class Gemm:
    """Products on one pool.  Holds memory: of the weights, of rounded rows, of experts at work."""

    def __init__(self, pool: _native.Pool, activations: str) -> None:
        self._pool = pool
        self.panels = _native.Panels()
        self._last = np.empty(0, np.float32)
        self._arena = _native.Arena()
        opens = pool.opens_pairs
        self._modes = {base: choose_mode(activations, base, opens) for base in _native.kinds()}
        self.by_kind = list(self._modes.values())

    def count_packed_bytes(self, shape: tuple[int, int], kind: str) -> int:
        """Bytes `pack` holds for a weight without bias, exactly."""
        return int(_native.packed_nbytes(kind, *shape))

    def pack(
        self,
        shape: tuple[int, int],
        parts: Iterable[Part],
        bias: F32 | None = None,
    ) -> PackedWeight:
        """Row ranges, in order, into one weight; parts are taken one at a time."""
        tiles: _native.Tiles | None = None
        row, first = 0, None
        for part in parts:
            kind, rows = find_part_kind(part), part.shape[0]
            first = part if first is None else first
            if tiles is None:
                check_columns(shape, kind)
                tiles = _native.Tiles(self._arena, kind, *shape)
            if kind != tiles.kind:
                raise CheckpointError(
                    f"one weight of kinds {tiles.kind}, {kind}; its parts must be of one kind"
                )
            if part.shape[1] != shape[1] or row + rows > shape[0]:
                raise CheckpointError(
                    f"weight part {part.shape} at row {row} where a weight {shape} is needed"
                )
            if isinstance(part, BlockRows):
                _native.pack_blocks(self._pool, tiles, row, rows, to_bytes(part.raw))
            else:
                _native.pack_rows(self._pool, tiles, row, rows, *list_fields(part))
                pack_extras(tiles, row, part, first)
            row += rows
        if tiles is None or row != shape[0]:
            raise CheckpointError(f"weight with {row} rows where {shape[0]} are needed")
        return PackedWeight(shape, tiles.kind, tiles, copy_bias(shape, bias))

    def linear(self, x: F32, weights: PackedWeight | tuple[PackedWeight, ...]) -> F32:
        """[T,K] x (N,K) -> [T,N]; a tuple's outputs are side by side."""
        x = np.ascontiguousarray(x)
        if isinstance(weights, PackedWeight):
            out = self._allocate_output(len(x), weights.shape[0])
            self._multiply_into(x, weights, out, 0)
            return out
        out = self._allocate_output(len(x), sum(w.shape[0] for w in weights))
        column = 0
        for w in weights:
            self._multiply_into(x, w, out, column)
            column += w.shape[0]
        return out

    def _allocate_output(self, rows: int, columns: int) -> F32:
        """An array to write.  A large one (the logits of a step) uses the memory of the last, if no
        one holds that any more: pages fresh from the system are cleared first, which costs as much
        as sampling them.
        """
        if 4 * rows * columns < LARGE:
            return np.empty((rows, columns), np.float32)
        if self._last.size < rows * columns or sys.getrefcount(self._last) > OURS:
            self._last = np.empty(rows * columns, np.float32)
        return self._last[: rows * columns].reshape(rows, columns)

    def _multiply_into(self, x: F32, w: PackedWeight, out: F32, column: int) -> None:
        _native.linear(
            self._pool, self.panels, x, w.tiles, w.bias, out, column, self._modes[find_base(w.kind)]
        )

    def linear_heads(self, x: F32, weights: Sequence[Weights]) -> F32:
        """[T,Hq,K] x Hq of (N,K) -> [T,Hq,N]."""
        x = np.ascontiguousarray(x)
        return _native.linear_heads(self._pool, self.panels, x, weights, self.by_kind)

    def experts(self, x: F32, chosen: Chosen, matrices: Matrices, act: _native.GatedAct) -> F32:
        """[T,H] -> [T,H]; only the weights of chosen experts are looked at."""
        x, ids = np.ascontiguousarray(x), np.ascontiguousarray(chosen[0])
        weights = np.ascontiguousarray(chosen[1])
        return _native.experts(
            self._pool, self.panels, x, ids, weights, matrices, act, self.by_kind
        )

    def embed(self, table: PackedWeight, ids: I32) -> F32:
        """[T] -> [T,K]: rows of the table, exactly as their format defines them."""
        out = np.empty((len(ids), table.shape[1]), np.float32)
        _native.embed(self._pool, table.tiles, ids, out)
        return out


def map_weight(
    file: _native.TileFile, offset: int, shape: tuple[int, int], kind: str, bias: F32 | None
) -> PackedWeight:
    """A weight whose tiles are in a file."""
    return PackedWeight(shape, kind, file.tiles(offset, kind, *shape), copy_bias(shape, bias))


def copy_bias(shape: tuple[int, int], bias: F32 | None) -> F32 | None:
    own = None if bias is None else np.ascontiguousarray(bias, np.float32)
    if own is not None and own.shape != shape[:1]:
        raise CheckpointError(f"bias of shape {own.shape} where {shape[:1]} is needed")
    return own


def list_fields(
    part: GroupedWeight | Array,
) -> tuple[U8, U8 | None, U8 | None, U8 | None, U8 | None]:
    """codes, scales, mins (or zero points), super_scales, super_mins as bytes: what
    `_native.pack_rows` takes.
    """
    if not isinstance(part, GroupedWeight):
        return (to_bytes(part), None, None, None, None)
    lows = part.mins if part.zeros is None else part.zeros
    scales, mins, supers, super_mins = (
        None if a is None else to_bytes(a)
        for a in (part.scales, lows, part.super_scales, part.super_mins)
    )
    return to_bytes(part.codes), scales, mins, supers, super_mins


def pack_extras(tiles: _native.Tiles, row: int, part: GroupedWeight | Array, first: Part) -> None:
    """What belongs to whole rows or to the whole weight, of the rows from `row` on; the order of
    columns and the scale of activations must be those of the first part.
    """
    if not isinstance(part, GroupedWeight) or not isinstance(first, GroupedWeight):
        return
    whole = part.columns is None or np.array_equal(part.columns, np.asarray(first.columns))
    if not whole or part.input_scale != first.input_scale:
        raise CheckpointError("parts of one weight with columns or activations of their own")
    if part.row_scales is not None or part.columns is not None or part.input_scale:
        _native.pack_extras(tiles, row, part.row_scales, part.columns, part.input_scale)


def to_bytes(array: Array) -> U8:
    flat: NDArray[np.uint8] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat
