"""Puts a slot's contents into the tensors of a file: floats in their kind, codes by the layout.

Invariant: what is written of a tensor is what the assignment laid out for it.  Rows may come in
parts; those of a quantised tensor are put together before they are encoded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flyweight.ops.base import to_bf16_bits
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.quantize.assignment import Assignment
from flyweight.quantize.output.layout import MatrixLayout
from flyweight.quantize.output.target import TensorWriter
from flyweight.quantize.precision import Precision
from flyweight.quantize.tensors import TensorRows, to_bytes
from flyweight.wire import F32

Coded = GroupedWeight | BlockRows
Round = Callable[[F32, Precision], Coded]
Parts = Iterable[tuple[int, F32]]  # number of the first row of a slot, and rows from it on
ARRAYS = ("codes", "scales", "zeros", "mins", "row_scales")


@dataclass(frozen=True, slots=True)
class TensorOutput:
    """The tensors of one file."""

    writer: TensorWriter
    assignment: Assignment
    layout: MatrixLayout

    def write_vectors(self, vectors: Mapping[str, F32], biases: Mapping[str, F32]) -> None:
        """Vector slots, and the biases of matrix slots."""
        named = dict(vectors) | {f"{slot}.bias": values for slot, values in biases.items()}
        for name, values in named.items():
            for part in self.assignment.elements.get(name, ()):
                placed = to_kind(part.place(values), self.assignment.kinds[part.tensor])
                self.writer.write(part.tensor, to_bytes(placed), part.start * placed.itemsize)

    def write_matrix(self, slot: str, parts: Parts, make: Round) -> None:
        """A matrix slot, by ascending rows."""
        made: dict[str, list[tuple[Coded, int]]] = {}
        for first, rows in parts:
            for piece in self.assignment.rows[slot]:
                start = max(first, piece.first)
                stop = min(first + len(rows), piece.first + piece.rows)
                if start >= stop:
                    continue
                own, precision = rows[start - first : stop - first], self._find(piece)
                if precision.quantised:
                    coded = make(own, precision), piece.start + start - piece.first
                    if self.layout.apart:
                        self._write_blocks(piece, *coded)
                    else:
                        made.setdefault(piece.tensor, []).append(coded)
                else:
                    self._write_floats(piece, start, own)
        for piece in self.assignment.rows[slot]:
            if piece.tensor in made:
                self._encode(piece, made.pop(piece.tensor))

    def _find(self, piece: TensorRows) -> Precision:
        return self.assignment.precision[piece.tensor]

    def _write_blocks(self, piece: TensorRows, coded: Coded, start: int) -> None:
        """Rows that are whole bytes of their tensor."""
        assert isinstance(coded, BlockRows), "rows that are apart are blocks"
        if piece.order:
            assert coded.shape[0] == piece.rows, "rows in another order come at once"
            coded = coded.take(piece.find_places(piece.rows))
        self.writer.write(piece.tensor, to_bytes(coded.raw), start * coded.raw.shape[1])

    def _encode(self, piece: TensorRows, made: Sequence[tuple[Coded, int]]) -> None:
        whole = join_rows([coded for coded, _ in sorted(made, key=lambda one: one[1])])
        if piece.order:
            whole = whole.take(piece.find_places(whole.shape[0]))
        encoded = self.layout.encode(piece.module, whole, self._find(piece))
        for name, array in encoded.items():
            self.writer.write(name, to_bytes(np.asarray(array)))

    def _write_floats(self, piece: TensorRows, start: int, rows: F32) -> None:
        """Rows of a slot from `start` on; those in another order come as a whole."""
        kind = self.assignment.kinds[piece.tensor]
        if piece.order:
            assert len(rows) == piece.rows, "rows in another order come at once"
            rows = rows[piece.find_places(len(rows))]
        data = to_kind(rows.T if piece.transposed else rows, kind)
        row = 0 if piece.transposed else piece.start + start - piece.first
        self.writer.write(piece.tensor, to_bytes(data), row * data.shape[-1] * data.itemsize)


def join_rows(pieces: Sequence[Coded]) -> Coded:
    """Rows of one matrix below each other."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ARRAYS
        if getattr(first, name, None) is not None
    }
    rows = sum(piece.shape[0] for piece in pieces)
    return replace(first, shape=(rows, first.shape[1]), **joined)


def to_kind(values: F32, kind: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Floats in the type of a tensor; bfloat16 as its bits."""
    if kind == "bf16":
        return to_bf16_bits(values)
    return values.astype({"f32": np.float32, "f16": np.float16}[kind])
