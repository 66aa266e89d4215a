"""The importance of columns: how large the inputs of each matrix are, for types of GGUF.

Invariant: inputs are those of the model as it is, and results name GGUF's tensors, so that
llama.cpp's tools read what is written here and the other way round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from flyweight.describe import ModelDescription
from flyweight.errors import CheckpointError
from flyweight.ops.base import Ops
from flyweight.quantize.ggml.convert import convert_model
from flyweight.quantize.ggml.imatrix import ImportanceFile, ImportanceMatrix, read_imatrix
from flyweight.quantize.job import Report
from flyweight.quantize.layers import LayerRun
from flyweight.quantize.recording import record
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.tensors import TensorRows, list_rows, split_layers
from flyweight.weights.load import load_slots
from flyweight.wire import F32, I32

Rows = Mapping[str, Sequence[TensorRows]]  # by slot: where its rows are in tensors


@dataclass(frozen=True, slots=True)
class ColumnImportance:
    """An importance file, looked up by slot; `digest` identifies its contents."""

    file: ImportanceFile
    rows: Rows
    digest: str

    @classmethod
    def read(cls, path: Path, rows: Rows) -> "ColumnImportance":
        """Raises `CheckpointError` for a file that is damaged or of another model."""
        found = cls(read_imatrix(path), rows, sha256(path.read_bytes()).hexdigest())
        for slot in rows:
            found.find(slot)
        if not any(
            piece.tensor in found.file.matrices for pieces in rows.values() for piece in pieces
        ):
            raise CheckpointError(f"{path}: has no tensor of this model")
        return found

    def find(self, slot: str) -> InputStatistics | None:
        """The mean squares of a slot's inputs as statistics of one row, or None where the file has
        none.
        """
        piece = self.rows[slot][0]
        means = self.file.find(piece.tensor, piece.shape)
        if means is None:
            return None
        found = InputStatistics(piece.shape[-1], count=1)
        found.squares += means[find_matrix(piece)]
        return found


def find_matrix(piece: TensorRows) -> int:
    """Which of the matrices that are stacked in a tensor a slot's rows belong to."""
    return piece.start // piece.shape[-2] if len(piece.shape) > 2 else 0


def measure_importance(
    found: ModelDescription, windows: I32, ops: Ops, report: Report
) -> ImportanceFile:
    """Runs the windows [W, L] through the model, layer by layer from disk.  Raises `ConfigError`
    for a model that GGUF cannot hold.
    """
    plan = convert_model(found.checkpoint.config, found.spec, found.plan).plan
    rows = {slot.name: list_rows(slot) for slot in plan.slots if slot.kind == "linear"}
    top, layers = split_layers(found.plan, len(found.spec.layers))
    run = LayerRun(found.spec, windows)
    run.embed(ops, load_slots(found.checkpoint, top, ops))
    matrices: dict[str, ImportanceMatrix] = {}
    for i, slots in enumerate(layers):
        report(f"layer {i + 1} of {len(layers)}", i, len(layers))
        weights = load_slots(found.checkpoint, slots, ops)
        seen = {s.name: InputStatistics(s.shape[1]) for s in slots if s.kind == "linear"}
        run.advance(i, record(ops, weights, partial(_take, seen)), weights)
        for slot, statistics in seen.items():
            statistics.check(slot)
            for piece in rows.get(slot, ()):
                _add(matrices, piece, statistics)
    report("done", len(layers), len(layers))
    return ImportanceFile(matrices, chunks=len(windows), chunk_size=windows.shape[1])


def _take(seen: Mapping[str, InputStatistics], slot: str, x: F32) -> None:
    seen[slot].take(x)


def _add(
    matrices: dict[str, ImportanceMatrix], piece: TensorRows, statistics: InputStatistics
) -> None:
    if piece.tensor not in matrices:
        count = int(np.prod(piece.shape[:-2])) if len(piece.shape) > 2 else 1
        sums: F32 = np.zeros((count, piece.shape[-1]), np.float32)
        matrices[piece.tensor] = ImportanceMatrix(sums, np.zeros(count, np.float32))
    own, place = matrices[piece.tensor], find_matrix(piece)
    own.sums[place] = statistics.squares
    own.counts[place] = statistics.count
