"""How a format stores one quantised matrix, and what its config says of the model.

Invariant: `list_entries` knows every tensor of a matrix before it is quantised; `encode` gives
exactly these.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flyweight.quantize.output.container import OutputTensor
from flyweight.quantize.precision import Precision

Tensors = Mapping[str, Any]  # arrays by the name of their tensor; bfloat16 as its bits


class MatrixLayout(Protocol):
    """How matrices are stored; `name` is what `--format` calls it.  `vectors` is the kind of
    vectors and biases, "" for the model's own; rows that are `apart` are whole bytes of one tensor,
    so that they may be encoded a few at a time.
    """

    @property
    def name(self) -> str: ...
    @property
    def vectors(self) -> str: ...
    @property
    def apart(self) -> bool: ...

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        """Why a matrix [N, K] cannot be stored with this precision; "" where it can."""
        ...

    def list_entries(
        self, module: str, shape: tuple[int, ...], precision: Precision
    ) -> list[OutputTensor]: ...
    def encode(self, module: str, weight: Any, precision: Precision) -> Tensors: ...
    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        """The quantization_config of a model with these quantised modules, the others `kept`."""
        ...
