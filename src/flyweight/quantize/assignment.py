"""Which tensors are written, and what each becomes.

Invariant: every tensor of the target plan is assigned once; a matrix that cannot be quantised is
kept in floats, and `kept` says why.  Reads no weights.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd

from flyweight.errors import ConfigError
from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.output.layout import MatrixLayout
from flyweight.quantize.precision import KEEP, LayerPrecision, Precision
from flyweight.quantize.tensors import (
    TensorRows,
    VectorElements,
    list_biases,
    list_elements,
    list_rows,
)
from flyweight.spec import SlotPlan, WeightPlan
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.formats import FORMATS

NEVER = ("router", "shared_gate")  # small, and a wrong choice of experts costs much
UNBOUNDED = re.compile(r".*\.(out|(shared_)?down(\.\d+)?)")  # slots whose inputs follow no norm
TOP = {"embed": "embed", "head": "lm_head"}  # slots by their names in `--layer-precision`


@dataclass(slots=True)
class Assignment:
    """`rows` and `elements` by slot: where its contents go; `precision` by tensor."""

    rows: dict[str, list[TensorRows]] = field(default_factory=dict)
    elements: dict[str, list[VectorElements]] = field(default_factory=dict)
    precision: dict[str, Precision] = field(default_factory=dict)
    entries: list[OutputTensor] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  # of tensors in floats
    layers: tuple[Precision, ...] = ()

    @property
    def modules(self) -> dict[str, Precision]:
        """The quantised modules."""
        return {
            name.removesuffix(".weight"): p for name, p in self.precision.items() if p.quantised
        }


Choose = Callable[[SlotPlan, TensorRows], tuple[Precision, str]]


class Assigner:
    """Assigns the tensors of `target`, which is to have the contents of `source`'s slots.  `choose`
    gives the precision of a matrix, and why it is not the one that was wanted.
    """

    def __init__(
        self,
        source: WeightPlan,
        target: WeightPlan,
        checkpoint: Checkpoint,
        layout: MatrixLayout,
        choose: Choose,
    ) -> None:
        self._layout, self._choose, self._target = layout, choose, target
        self._kinds = {slot.name: _find_dense_kind(slot, checkpoint) for slot in source.slots}
        self._checkpoint = checkpoint

    def assign(self, layers: tuple[Precision, ...]) -> Assignment:
        """`layers` are the usual precisions of the layers' matrices."""
        found = Assignment(layers=layers)
        for slot in self._target.slots:
            if slot.kind == "vector":
                self._add_vectors(found, slot.name, list_elements(slot))
                continue
            found.rows[slot.name] = list_rows(slot)
            for piece in found.rows[slot.name]:
                self._add_matrix(found, slot, piece)
            self._add_vectors(found, f"{slot.name}.bias", list_biases(slot))
        return found

    def _add_vectors(self, found: Assignment, name: str, parts: list[VectorElements]) -> None:
        found.elements[name] = parts
        for part in parts:
            kind = self._layout.vectors or self._find_kind(part.tensor, part.slot)
            self._add_entry(found, part.tensor, part.shape, kind)

    def _add_matrix(self, found: Assignment, slot: SlotPlan, piece: TensorRows) -> None:
        if piece.tensor in found.precision:
            return
        wanted, why = self._choose(slot, piece)
        found.precision[piece.tensor] = wanted
        if wanted.quantised:
            found.entries += self._layout.list_entries(piece.module, piece.shape, wanted)
            return
        if why:
            found.kept[piece.module] = why
        kind = wanted.dense
        if kind == "same":
            kind = self._find_kind(piece.tensor, slot.name)
        self._add_entry(found, piece.tensor, piece.shape, kind)

    def _find_kind(self, tensor: str, slot: str) -> str:
        """The float kind a tensor is written in: its own where it has one."""
        info = self._checkpoint.tensors.get(tensor)
        if info is not None and info.kind in ("f32", "f16", "bf16"):
            return info.kind
        return self._kinds.get(slot, "f32")

    def _add_entry(self, found: Assignment, name: str, shape: tuple[int, ...], kind: str) -> None:
        if name not in found.kinds:
            found.kinds[name] = kind
            found.entries.append(OutputTensor(name, kind, shape))


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Chooses by layer, where the layout can store it.  Static scales of activations are for inputs
    that a norm bounds: those of others differ so much between tokens that one scale costs several
    times as much as a scale a token.
    """

    layout: MatrixLayout
    precision: LayerPrecision
    columns: int  # the largest number that divides the columns of every matrix

    def __call__(self, slot: SlotPlan, piece: TensorRows) -> tuple[Precision, str]:
        prefix, _, rest = slot.name.partition(".")
        if prefix != "layers":
            wanted = self.precision.named.get(TOP.get(slot.name, ""), KEEP)
        else:
            wanted = self.precision.layers[int(rest.split(".", 1)[0])]
        if not wanted.quantised:
            return wanted, ""
        if slot.name.endswith(NEVER):
            return KEEP, "routes tokens to experts"
        if wanted.activations == "static" and UNBOUNDED.fullmatch(slot.name):
            wanted = replace(wanted, activations="dynamic")
        if piece.transposed or len(piece.shape) != 2:
            return KEEP, "is stored transposed or stacked"
        n, k = piece.shape
        check_group(wanted.count_group(k), piece, self.columns)
        why = self.layout.check(wanted, (n, k))
        if why and wanted.bits not in (4, 8):
            raise ConfigError(why, "format", value=self.layout.name)
        return (KEEP, why) if why else (wanted, "")


def find_common_columns(plan: WeightPlan) -> int:
    """The largest number that divides the columns of every matrix."""
    slots = (slot for slot in plan.slots if slot.kind == "linear")
    return gcd(*(piece.shape[-1] for slot in slots for piece in list_rows(slot)))


def check_group(group: int, piece: TensorRows, common: int) -> None:
    """Raises `ConfigError` where groups do not divide a matrix's columns; the nearest size that is
    valid divides the columns of all, `common`.
    """
    columns = piece.shape[-1]
    if columns % group:
        raise ConfigError(
            f"does not divide the {columns} columns of {piece.module}",
            "group_size",
            value=group,
            hint=f"nearest valid: {_find_divisor(common if common >= 8 else columns, group)}",
        )


def _find_dense_kind(slot: SlotPlan, checkpoint: Checkpoint) -> str:
    """float16 for what was quantised: its scales are float16."""
    kinds = {checkpoint.tensors[source.tensor].kind for source in slot.sources}
    if kinds <= {"f32", "f16", "bf16"}:
        return kinds.pop() if len(kinds) == 1 else "f32"
    return "f16"


def list_quantised(checkpoint: Checkpoint, plan: WeightPlan) -> list[str]:
    """The matrices of a checkpoint that are quantised already."""
    return [
        source.tensor
        for slot in plan.slots
        if slot.kind == "linear"
        for source in slot.sources
        if FORMATS[checkpoint.tensors[source.tensor].kind].quantised
    ]


def _find_divisor(k: int, group: int) -> int:
    """The divisor of k that is nearest to a group size."""
    return min((d for d in range(8, k + 1) if k % d == 0), key=lambda d: (abs(d - group), -d))


def make_uniform(layers: int, precision: Precision) -> LayerPrecision:
    """The same precision for every layer."""
    named: Mapping[str, Precision] = {}
    return LayerPrecision((precision,) * layers, named)
