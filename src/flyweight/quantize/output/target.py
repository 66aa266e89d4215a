"""What a job writes: a place for tensors, a way to read what is written so far, and a final name.

Invariant: until `publish` nothing is under the final name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from flyweight.describe import ModelDescription
from flyweight.quantize.assignment import Assignment
from flyweight.quantize.output.container import SafetensorsWriter
from flyweight.quantize.output.folder import WEIGHTS, copy_companions, publish, write_json
from flyweight.quantize.output.layout import MatrixLayout
from flyweight.quantize.tensors import split_layers
from flyweight.spec import SlotPlan
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint

HEAD = "lm_head"


class TensorWriter(Protocol):
    """A file whose tensors have their places."""

    def write(self, name: str, data: bytes, offset: int = 0) -> None: ...
    def sync(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class OutputTarget(Protocol):
    """The files of one quantised model, made in the folder `work`."""

    @property
    def assignment(self) -> Assignment: ...
    @property
    def layout(self) -> MatrixLayout: ...
    @property
    def file(self) -> str:
        """The name of the file of weights in `work`."""
        ...

    def create(self, work: Path) -> TensorWriter:
        """Writes all that is known before the tensors; opened again, keeps what is there."""
        ...

    def open(self, work: Path) -> tuple[Checkpoint, list[list[SlotPlan]]]:
        """What is written so far, and the slots of its layers."""
        ...

    def publish(self, work: Path, out: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class FolderTarget:
    """A Hugging Face folder."""

    found: ModelDescription
    assignment: Assignment
    layout: MatrixLayout
    file: str = WEIGHTS

    def create(self, work: Path) -> SafetensorsWriter:
        write_json(work / "config.json", self._make_config())
        source = self.found.checkpoint.tokenizer_source
        if isinstance(source, Path):
            copy_companions(source, work)
        return SafetensorsWriter(work / self.file, self.assignment.entries, {"format": "pt"})

    def open(self, work: Path) -> tuple[Checkpoint, list[list[SlotPlan]]]:
        layers = len(self.found.spec.layers)
        return open_checkpoint(work), split_layers(self.found.published, layers)[1]

    def publish(self, work: Path, out: Path) -> None:
        publish(work, out)

    def _make_config(self) -> dict[str, Any]:
        given: Mapping[str, Any] = self.found.checkpoint.config
        config = {key: value for key, value in given.items() if key != "quantization_config"}
        modules = self.assignment.modules
        if modules:
            kept = list_kept(self.assignment)
            config["quantization_config"] = self.layout.describe(modules, kept)
        return config


def list_kept(assignment: Assignment) -> Sequence[str]:
    """Linear modules that stay in floats, the head among them, also where it is the embedding."""
    kept = [
        name.removesuffix(".weight")
        for name, precision in assignment.precision.items()
        if not precision.quantised and "embed" not in name
    ]
    head = [] if HEAD in kept or HEAD in assignment.modules else [HEAD]
    return kept + head
