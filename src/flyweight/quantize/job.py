"""One run of `flyweight quantize` into a folder: calibrate, quantise and write layer by layer.

Invariant: one layer's weights are in memory at a time; the layers before have their quantised
weights when a layer is calibrated, read back from the file that is being written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from flyweight import __version__
from flyweight.describe import ModelDescription
from flyweight.errors import ConfigError
from flyweight.ops.base import Ops
from flyweight.quantize.finite import (
    iterate_finite_rows,
    read_finite_bias,
    read_finite_matrix,
    read_finite_vector,
)
from flyweight.quantize.folds import find_folds
from flyweight.quantize.journal import MEASURED, MODEL, NAME, Journal, find_work
from flyweight.quantize.layers import LayerRun
from flyweight.quantize.method import Inputs, Method
from flyweight.quantize.options import QuantizeOptions
from flyweight.quantize.output.target import OutputTarget, TensorWriter
from flyweight.quantize.precision import Precision
from flyweight.quantize.reading import read_ahead
from flyweight.quantize.statistics import Accumulate, InputStatistics
from flyweight.quantize.tensors import split_layers
from flyweight.quantize.work import LayerWeights
from flyweight.quantize.writing import Coded, TensorOutput
from flyweight.spec import SlotPlan
from flyweight.weights.load import load_slots
from flyweight.wire import F32, I32

Report = Callable[[str, int, int], None]  # what is done, how many steps of how many are


@dataclass(frozen=True, slots=True)
class Backends:
    """`floats` computes with the weights as they were, `codes` with quantised ones."""

    floats: Ops
    codes: Ops
    accumulate: Accumulate


class ImportanceSource(Protocol):
    """Statistics of inputs that were measured before; `digest` identifies them."""

    @property
    def digest(self) -> str: ...

    def find(self, slot: str) -> InputStatistics | None: ...


class QuantizeJob:
    """Quantises `found` into `target`.  `windows` are the calibration's, None without one;
    `importance` is used where there are none.
    """

    def __init__(
        self,
        found: ModelDescription,
        options: QuantizeOptions,
        target: OutputTarget,
        windows: I32 | None,
        importance: ImportanceSource | None = None,
    ) -> None:
        self.importance = importance
        self.found, self.options, self.target = found, options, target
        self.assignment, self.layout, self.windows = target.assignment, target.layout, windows
        settings = options.method_settings
        self.method: Method = options.kind.make(settings)
        self.notes = settings.notes  # what users should know of the result
        self._top, self._layers = split_layers(found.plan, len(found.spec.layers))

    def run(self, out: Path, backends: Backends, report: Report) -> None:
        """Writes the model; continues where a killed run stopped.  Raises `ConfigError` where it
        cannot be written.
        """
        work = find_work(out)
        try:
            self._write(work, backends, report)
            self.target.publish(work / MODEL, out)
            (work / NAME).unlink()
            if (work / MEASURED).exists():
                (work / MEASURED).unlink()
            work.rmdir()
        except OSError as error:
            raise ConfigError(
                f"cannot be written: {error.strerror or error}", "out", value=str(out),
                hint="the same command goes on where it stopped",
            ) from error  # fmt: skip

    def _write(self, work: Path, backends: Backends, report: Report) -> None:
        model = work / MODEL
        model.mkdir(parents=True, exist_ok=True)
        journal = Journal.open(work, self.identify(), model / self.target.file)
        journal.save()
        with self.target.create(model) as writer:
            if not journal.top:
                report("writing tensors outside of layers", 0, len(self._layers) + 1)
                self._write_apart(TensorOutput(writer, self.assignment, self.layout), self._top)
                writer.sync()
                journal.top = True
                journal.save()
            self._run_layers(model, writer, journal, backends, report)

    def identify(self) -> str:
        """A hash of all that decides the bytes of the output."""
        windows = b"" if self.windows is None else self.windows.tobytes()
        if self.importance is not None:
            windows += self.importance.digest.encode()
        made = self.layout.name, self.assignment.entries
        words = (__version__, self.found.checkpoint.fingerprint, self.options, *made)
        return sha256(repr(words).encode() + windows).hexdigest()[:32]

    def _run_layers(
        self,
        work: Path,
        writer: TensorWriter,
        journal: Journal,
        backends: Backends,
        report: Report,
    ) -> None:
        count = len(self._layers)
        run, written, made = None, None, list[list[SlotPlan]]()
        if self.windows is not None:
            run = LayerRun(self.found.spec, self.windows)
            run.embed(
                backends.floats, load_slots(self.found.checkpoint, self._top, backends.floats)
            )
            written, made = self.target.open(work)
        try:
            for i, slots in enumerate(self._layers):
                report(f"layer {i + 1} of {count}", i + 1, count + 1)
                if i >= journal.layers:
                    self._quantise_layer(i, slots, writer, run, backends)
                    writer.sync()
                    journal.layers = i + 1
                    journal.save()
                if run is not None and written is not None and i + 1 < count:
                    weights = load_slots(written, made[i], backends.codes)
                    run.advance(i, backends.codes, weights)
            report("done", count + 1, count + 1)
        finally:
            if written is not None:
                written.close()

    def _quantise_layer(
        self,
        i: int,
        slots: Sequence[SlotPlan],
        writer: TensorWriter,
        run: LayerRun | None,
        backends: Backends,
    ) -> None:
        output = TensorOutput(writer, self.assignment, self.layout)
        if run is None:  # no matrix depends on another
            self._write_apart(output, slots)
            return
        weights = load_slots(self.found.checkpoint, slots, backends.floats)
        gram = backends.accumulate if self.options.needs == "gram" else None
        wanted = {
            slot.name: InputStatistics(slot.shape[1], gram)
            for slot in slots
            if slot.kind == "linear"
        }
        run.observe(i, backends.floats, weights, lambda slot, x: wanted[slot].take(x))
        del weights
        inputs = {name: found for name, found in wanted.items() if found.count}
        self._write_together(output, i, slots, inputs)

    def _write_together(
        self, output: TensorOutput, i: int, slots: Sequence[SlotPlan], inputs: Inputs
    ) -> None:
        layer = LayerWeights.read(self.found.checkpoint, slots)
        for name, one in inputs.items():
            one.check(name)
        layer.folds = find_folds(self.found.spec, i, self.found.plan)
        layer.precision = self.assignment.layers[i]
        self.method.prepare(layer, inputs)
        output.write_vectors(layer.vectors, layer.biases)
        for name in list(layer.matrices):
            given = inputs.get(name)
            whole = [(0, layer.matrices.pop(name))]
            output.write_matrix(name, whole, partial(self._round, name, given))

    def _write_apart(self, output: TensorOutput, slots: Sequence[SlotPlan]) -> None:
        """Slots one after the other, in parts where the rows keep their order: a matrix outside of
        the layers may be larger than a layer.
        """
        checkpoint = self.found.checkpoint
        for slot in slots:
            if slot.kind == "vector":
                output.write_vectors({slot.name: read_finite_vector(checkpoint, slot)}, {})
                continue
            inputs = self.importance.find(slot.name) if self.importance is not None else None
            ordered = any(piece.order for piece in self.assignment.rows[slot.name])
            parts = (
                [(0, read_finite_matrix(checkpoint, slot))]
                if ordered
                else read_ahead(iterate_finite_rows(checkpoint, slot))
            )
            output.write_matrix(slot.name, parts, partial(self._round, slot.name, inputs))
            bias = read_finite_bias(checkpoint, slot)
            if bias is not None:
                output.write_vectors({}, {slot.name: bias})

    def _round(
        self, slot: str, inputs: InputStatistics | None, rows: F32, precision: Precision
    ) -> Coded:
        return self.method.round(slot, rows, precision, inputs)
