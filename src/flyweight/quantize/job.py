"""One run of `flyweight quantize` into a folder: calibrate, quantise and write layer by layer.

Invariant: one layer's weights are in memory at a time; the layers before have their quantised
weights when a layer is calibrated, read back from the file that is being written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import __version__
from flyweight.describe import ModelDescription
from flyweight.ops.base import Ops, to_bf16_bits
from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.assignment import Assignment
from flyweight.quantize.journal import NAME, Journal
from flyweight.quantize.layers import LayerRun
from flyweight.quantize.method import Inputs, Method
from flyweight.quantize.options import QuantizeOptions
from flyweight.quantize.output.container import SafetensorsWriter
from flyweight.quantize.output.folder import WEIGHTS, copy_companions, publish, write_json
from flyweight.quantize.output.layout import MatrixLayout
from flyweight.quantize.statistics import Accumulate, InputStatistics
from flyweight.quantize.tensors import TensorRows, split_layers, to_bytes
from flyweight.quantize.work import LayerWeights
from flyweight.spec import SlotPlan
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.load import load_slots
from flyweight.wire import F32, I32

Report = Callable[[str, int, int], None]  # what is done, how many steps of how many are


@dataclass(frozen=True, slots=True)
class Backends:
    """`floats` computes with the weights as they were, `codes` with quantised ones."""

    floats: Ops
    codes: Ops
    accumulate: Accumulate


class QuantizeJob:
    """Quantises `found` into `out`.  `windows` are the calibration's, none without."""

    def __init__(
        self,
        found: ModelDescription,
        options: QuantizeOptions,
        layout: MatrixLayout,
        assignment: Assignment,
        windows: I32 | None,
    ) -> None:
        self.found, self.options, self.layout = found, options, layout
        self.assignment, self.windows = assignment, windows
        self.method: Method = options.kind.make(options.method_settings)
        self._top, self._layers = split_layers(found.plan, len(found.spec.layers))
        self._target = split_layers(found.published, len(found.spec.layers))[1]

    def run(self, out: Path, backends: Backends, report: Report) -> None:
        """Writes the folder; continues where a killed run stopped."""
        work = out.with_name(f"{out.name}.partial")
        work.mkdir(parents=True, exist_ok=True)
        journal = Journal.open(work, self.identify())
        self._write_config(work)
        metadata = {"format": "pt"}
        with SafetensorsWriter(work / WEIGHTS, self.assignment.entries, metadata) as writer:
            journal.save()
            if not journal.top:
                report("writing tensors outside of layers", 0, len(self._layers) + 1)
                self._write_slots(writer, self._top, {})
                writer.sync()
                journal.top = True
                journal.save()
            self._run_layers(work, writer, journal, backends, report)
        (work / NAME).unlink()
        publish(work, out)

    def identify(self) -> str:
        """A hash of all that decides the bytes of the output."""
        windows = b"" if self.windows is None else self.windows.tobytes()
        words = (__version__, self.found.checkpoint.fingerprint, self.options, self.layout.name)
        return sha256(repr(words).encode() + windows).hexdigest()[:32]

    def _run_layers(
        self,
        work: Path,
        writer: SafetensorsWriter,
        journal: Journal,
        backends: Backends,
        report: Report,
    ) -> None:
        count = len(self._layers)
        calibrated = self.windows is not None and self.options.kind.needs
        run, written = None, None
        if calibrated:
            assert self.windows is not None
            run = LayerRun(self.found.spec, self.windows)
            run.embed(
                backends.floats, load_slots(self.found.checkpoint, self._top, backends.floats)
            )
            written = open_checkpoint(work)
        try:
            for i, slots in enumerate(self._layers):
                report(f"layer {i + 1} of {count}", i + 1, count + 1)
                if i >= journal.layers:
                    self._quantise_layer(i, slots, writer, run, backends)
                    writer.sync()
                    journal.layers = i + 1
                    journal.save()
                if run is not None and written is not None and i + 1 < count:
                    weights = load_slots(written, self._target[i], backends.codes)
                    run.advance(i, backends.codes, weights)
            report("done", count + 1, count + 1)
        finally:
            if written is not None:
                written.close()

    def _quantise_layer(
        self,
        i: int,
        slots: Sequence[SlotPlan],
        writer: SafetensorsWriter,
        run: LayerRun | None,
        backends: Backends,
    ) -> None:
        inputs: dict[str, InputStatistics] = {}
        if run is not None:
            weights = load_slots(self.found.checkpoint, slots, backends.floats)
            gram = backends.accumulate if self.options.kind.needs == "gram" else None
            wanted = {
                slot.name: InputStatistics(slot.shape[1], gram)
                for slot in slots
                if slot.kind == "linear"
            }
            run.observe(i, backends.floats, weights, lambda slot, x: wanted[slot].take(x))
            inputs = {name: found for name, found in wanted.items() if found.count}
            del weights
        self._write_slots(writer, slots, inputs)

    def _write_slots(
        self, writer: SafetensorsWriter, slots: Sequence[SlotPlan], inputs: Inputs
    ) -> None:
        layer = LayerWeights.read(self.found.checkpoint, slots)
        if inputs:
            self.method.prepare(layer, inputs)
        for name, values in layer.vectors.items():
            self._write_elements(writer, name, values)
        for name, values in layer.biases.items():
            self._write_elements(writer, f"{name}.bias", values)
        for name in list(layer.matrices):
            self._write_matrix(writer, name, layer.matrices.pop(name), inputs.get(name))

    def _write_elements(self, writer: SafetensorsWriter, slot: str, values: F32) -> None:
        for part in self.assignment.elements.get(slot, ()):
            kind = self.assignment.kinds[part.tensor]
            writer.write(part.tensor, to_bytes(to_kind(part.place(values), kind)))

    def _write_matrix(
        self, writer: SafetensorsWriter, slot: str, rows: F32, inputs: InputStatistics | None
    ) -> None:
        by_tensor: dict[str, list[TensorRows]] = {}
        for piece in self.assignment.rows[slot]:
            by_tensor.setdefault(piece.tensor, []).append(piece)
        for tensor, pieces in by_tensor.items():
            precision = self.assignment.precision[tensor]
            if precision.quantised:
                made = [
                    self.method.round(slot, rows[p.first : p.first + p.rows], precision, inputs)
                    for p in pieces
                ]
                placed = [p.place_rows(one) for p, one in zip(pieces, made, strict=True)]
                whole = join_rows([one for one in placed if isinstance(one, GroupedWeight)])
                for name, array in self.layout.encode(pieces[0].module, whole, precision).items():
                    writer.write(name, to_bytes(np.asarray(array)))
                continue
            for piece in pieces:
                self._write_floats(writer, piece, rows)

    def _write_floats(self, writer: SafetensorsWriter, piece: TensorRows, rows: F32) -> None:
        placed = piece.place_rows(rows[piece.first : piece.first + piece.rows])
        assert not isinstance(placed, GroupedWeight)
        kind = self.assignment.kinds[piece.tensor]
        data = to_kind(placed.T if piece.transposed else placed, kind)
        writer.write(piece.tensor, to_bytes(data), piece.start * data.shape[-1] * data.itemsize)

    def _write_config(self, work: Path) -> None:
        config = {
            key: value
            for key, value in self.found.checkpoint.config.items()
            if key != "quantization_config"
        }
        modules = self.assignment.modules
        if modules:
            kept = list_kept(self.assignment)
            config["quantization_config"] = self.layout.describe(modules, kept)
        write_json(work / "config.json", config)
        source = self.found.checkpoint.tokenizer_source
        if isinstance(source, Path):
            copy_companions(source, work)


def list_kept(assignment: Assignment) -> list[str]:
    """Linear modules that stay in floats, the head among them."""
    return [
        name.removesuffix(".weight")
        for name, precision in assignment.precision.items()
        if not precision.quantised and "embed" not in name
    ]


def join_rows(pieces: Sequence[GroupedWeight]) -> GroupedWeight:
    """Rows of one matrix below each other."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    rows = sum(piece.shape[0] for piece in pieces)
    fields = ("codes", "scales", "zeros", "mins", "row_scales")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in fields
        if getattr(first, name) is not None
    }
    return replace(first, shape=(rows, first.shape[1]), **joined)


def to_kind(values: F32, kind: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Floats in the type of a tensor; bfloat16 as its bits."""
    if kind == "bf16":
        return to_bf16_bits(values)
    return values.astype({"f32": np.float32, "f16": np.float16}[kind])
