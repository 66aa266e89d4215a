"""Which tensors are written, and what each becomes.

Invariant: every tensor of the target plan is assigned once; a matrix that cannot be quantised is
kept in floats, and `kept` says why.  Reads no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


class Assigner:
    """Assigns the tensors of `target`, which is to have the contents of `source`'s slots."""

    def __init__(
        self,
        source: WeightPlan,
        target: WeightPlan,
        checkpoint: Checkpoint,
        layout: MatrixLayout,
        precision: LayerPrecision,
    ) -> None:
        self._layout, self._precision = layout, precision
        self._target = target
        self._kinds = {slot.name: _find_dense_kind(slot, checkpoint) for slot in source.slots}
        self._checkpoint = checkpoint

    def assign(self) -> Assignment:
        found = Assignment(layers=self._precision.layers)
        for slot in self._target.slots:
            if slot.kind == "vector":
                found.elements[slot.name] = list_elements(slot)
                self._add_dense(found, slot)
                continue
            found.rows[slot.name] = list_rows(slot)
            for piece in found.rows[slot.name]:
                self._add_matrix(found, slot, piece)
            biases = list_biases(slot)
            if biases:
                found.elements[f"{slot.name}.bias"] = biases
                for part in biases:
                    kind = self._find_kind(part.tensor, slot.name)
                    self._add_entry(found, part.tensor, part.shape, kind)
        return found

    def _add_dense(self, found: Assignment, slot: SlotPlan) -> None:
        for part in found.elements[slot.name]:
            kind = self._find_kind(part.tensor, slot.name)
            self._add_entry(found, part.tensor, part.shape, kind)

    def _add_matrix(self, found: Assignment, slot: SlotPlan, piece: TensorRows) -> None:
        if piece.tensor in found.precision:
            return
        wanted, why = self._choose(slot, piece)
        found.precision[piece.tensor] = wanted
        if wanted.quantised:
            shape = piece.shape[-2], piece.shape[-1]
            found.entries += self._layout.list_entries(piece.module, shape, wanted)
            return
        if why:
            found.kept[piece.module] = why
        kind = wanted.dense
        if kind == "same":
            kind = self._find_kind(piece.tensor, slot.name)
        self._add_entry(found, piece.tensor, piece.shape, kind)

    def _choose(self, slot: SlotPlan, piece: TensorRows) -> tuple[Precision, str]:
        """The precision of a tensor, and why it is not the one wanted for its layer."""
        prefix, _, rest = slot.name.partition(".")
        if prefix != "layers":
            wanted = self._precision.named.get(TOP.get(slot.name, ""), KEEP)
        else:
            wanted = self._precision.layers[int(rest.split(".", 1)[0])]
        if not wanted.quantised:
            return wanted, ""
        if slot.name.endswith(NEVER):
            return KEEP, "routes tokens to experts"
        if piece.transposed or len(piece.shape) != 2:
            return KEEP, "is stored transposed or stacked"
        n, k = piece.shape[-2], piece.shape[-1]
        group = wanted.count_group(k)
        if k % group:
            raise ConfigError(
                f"does not divide the {k} columns of {piece.module}",
                "group_size",
                value=group,
                hint=f"nearest valid: {_find_divisor(k, group)}",
            )
        why = self._layout.check(wanted, (n, k))
        if why and wanted.bits not in (4, 8):
            raise ConfigError(f"{why}", "format", value=self._layout.name)
        return (KEEP, why) if why else (wanted, "")

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
