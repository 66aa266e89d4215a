"""The places of a model's slots in the tensors of a checkpoint that is to be written.

Invariant: a slot holds what the model computes with (row order, additions to norms); a tensor holds
what its file format has, and `weights.load` makes the slot of it again.  Knows no quantisation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyweight.spec import SlotPlan, WeightPlan
from flyweight.weights.load import make_row_order
from flyweight.wire import F32, I64


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Rows [first, first + rows) of a slot, which are the rows from `start` on of a tensor (leading
    axes count as rows).  A `transposed` tensor has them as columns.
    """

    tensor: str
    shape: tuple[int, ...]
    slot: str
    first: int
    rows: int
    start: int
    order: tuple[int, ...] = ()
    transposed: bool = False

    @property
    def module(self) -> str:
        """The tensor's name without its last part."""
        return self.tensor.removesuffix(".weight")

    def find_places(self, rows: int) -> I64:
        """The slot's row that each of the tensor's rows is, for a tensor in another order."""
        return np.argsort(make_row_order(rows, self.order))


@dataclass(frozen=True, slots=True)
class VectorElements:
    """`count` elements of a vector slot from `first` on, which are those from `start` on of a
    tensor of this shape, `plus` less.
    """

    tensor: str
    shape: tuple[int, ...]
    slot: str
    first: int
    count: int
    start: int = 0
    order: tuple[int, ...] = ()
    plus: float = 0.0

    def place(self, values: F32) -> F32:
        """The slot's values in the order of the tensor, flat."""
        own = values[self.first : self.first + self.count] - np.float32(self.plus)
        if not self.order:
            return own
        places = np.argsort(make_row_order(self.count // self._width, self.order))
        found: F32 = own.reshape(-1, self._width)[places].reshape(-1)
        return found

    @property
    def _width(self) -> int:
        """Elements that the order moves together: rows of a matrix."""
        return self.shape[-1] if len(self.shape) > 1 and not self.tensor.endswith(".bias") else 1


def list_rows(slot: SlotPlan) -> list[TensorRows]:
    """The places of the rows of a matrix slot, in their order."""
    found, first = [], 0
    for source in slot.sources:
        found.append(
            TensorRows(
                source.tensor,
                source.shape,
                slot.name,
                first,
                source.out,
                source.start,
                source.order,
                source.transposed,
            )
        )
        first += source.out
    return found


def list_biases(slot: SlotPlan) -> list[VectorElements]:
    """The places of the biases of a matrix slot."""
    found, first = [], 0
    for source in slot.sources:
        if source.bias:
            start = source.start // source.rows * source.out
            place = slot.name, first, source.out, start, source.order
            found.append(VectorElements(source.bias, source.bias_shape, *place))
        first += source.out
    return found


def list_elements(slot: SlotPlan) -> list[VectorElements]:
    """The places of the elements of a vector slot."""
    found, first = [], 0
    for source in slot.sources:
        width = source.shape[-1] if len(source.shape) > 1 else 1
        place = slot.name, first, source.rows * width, source.start * width, source.order
        found.append(VectorElements(source.tensor, source.shape, *place, slot.plus))
        first += source.rows * width
    return found


def split_layers(plan: WeightPlan, layers: int) -> tuple[list[SlotPlan], list[list[SlotPlan]]]:
    """The slots outside of layers, and those of each layer."""
    top: list[SlotPlan] = []
    inner: list[list[SlotPlan]] = [[] for _ in range(layers)]
    for slot in plan.slots:
        prefix, _, rest = slot.name.partition(".")
        (inner[int(rest.split(".", 1)[0])] if prefix == "layers" else top).append(slot)
    return top, inner


def to_bytes(array: NDArray[np.generic]) -> bytes:
    """Little-endian, C order."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
