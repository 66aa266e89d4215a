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
    """A format of several tensors a matrix; `name` is what `--format` calls it."""

    @property
    def name(self) -> str: ...

    def check(self, precision: Precision, shape: tuple[int, int]) -> str:
        """Why a matrix [N, K] cannot be stored with this precision; "" where it can."""
        ...

    def list_entries(
        self, module: str, shape: tuple[int, int], precision: Precision
    ) -> list[OutputTensor]: ...
    def encode(self, module: str, weight: Any, precision: Precision) -> Tensors: ...
    def describe(self, modules: Mapping[str, Precision], kept: Sequence[str]) -> dict[str, Any]:
        """The quantization_config of a model with these quantised modules, the others `kept`."""
        ...
