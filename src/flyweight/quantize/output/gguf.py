"""A GGUF file as the output of a job: types by a recipe or by tensor, rows encoded apart.

Invariant: the file under its work name is laid out as a whole before its first tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.describe import read_plan, read_spec
from flyweight.models.registry import find_family
from flyweight.ops.grouped import BlockRows
from flyweight.quantize.assignment import Assignment
from flyweight.quantize.ggml.container import GgufTensor, GgufWriter
from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.output.folder import publish
from flyweight.quantize.output.layout import Tensors
from flyweight.quantize.precision import DENSE, Precision
from flyweight.quantize.tensors import TensorRows, split_layers, to_bytes
from flyweight.spec import SlotPlan
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.formats import FORMATS
from flyweight.wire import F32


class GgufLayout:
    """Blocks of GGUF's types; vectors are float32 there."""

    name = "gguf"
    vectors, apart = "f32", True

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        block = FORMATS[precision.type].block
        return "" if shape[1] % block == 0 else f"needs columns in blocks of {block}"

    def list_entries(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> list[OutputTensor]:
        return [OutputTensor(f"{module}.weight", precision.type, shape)]

    def encode(self, module: str, weight: BlockRows, precision: Precision) -> Tensors:
        return {f"{module}.weight": weight.raw}

    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        """GGUF has no config: each tensor says its type."""
        return {}


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """Chooses a matrix's type by its tensor's name."""

    types: Mapping[str, str]

    def __call__(self, slot: SlotPlan, piece: TensorRows) -> tuple[Precision, str]:
        kind = self.types[piece.tensor]
        if kind in DENSE.values():
            return Precision(dense=kind), ""
        bits = round(8 * FORMATS[kind].nbytes / FORMATS[kind].block)
        return Precision(bits, FORMATS[kind].block, type=kind), ""


@dataclass(frozen=True, slots=True)
class GgufTarget:
    """One GGUF file with this metadata; `constants` are tensors that no slot has."""

    assignment: Assignment
    metadata: Mapping[str, object]
    constants: Mapping[str, F32] = field(default_factory=dict)
    layout: GgufLayout = field(default_factory=GgufLayout)
    file: str = "model.gguf"

    def create(self, work: Path) -> GgufWriter:
        entries = [GgufTensor(e.name, e.kind, e.shape) for e in self.assignment.entries]
        fixed = [GgufTensor(name, "f32", x.shape) for name, x in self.constants.items()]
        writer = GgufWriter(work / self.file, [*fixed, *entries], self.metadata)
        for name, values in self.constants.items():
            writer.write(name, to_bytes(np.asarray(values, np.float32)))
        return writer

    def open(self, work: Path) -> tuple[Checkpoint, list[list[SlotPlan]]]:
        checkpoint = open_checkpoint(work / self.file)
        family = find_family(checkpoint.config)
        spec = read_spec(checkpoint, family)
        return checkpoint, split_layers(read_plan(checkpoint, family, spec), len(spec.layers))[1]

    def publish(self, work: Path, out: Path) -> None:
        publish(work / self.file, out)
        work.rmdir()
