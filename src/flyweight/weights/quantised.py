"""What makes quantised matrices of a folder's tensors: its config's words on quantisation, from
at any place a writer may use, and the parts that formats read.

Invariant: arrays are copies, and no byte outside a tensor is read.  Knows no format's layout.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.ops.base import to_bf16_bits
from flyweight.ops.grouped import GroupedWeight, widen
from flyweight.validation.untrusted import read_json, shown
from flyweight.weights.formats import Rows
from flyweight.weights.formats.claims import DTYPES, Claim, Part
from flyweight.weights.mapped import MappedFile
from flyweight.weights.tensorinfo import Span

MOST_SUM = 2.0**64  # whose square float32 holds, as norms take it
LARGE = 2.0**20  # above the inputs of trained models' matrices
MOST_CODE = 127  # of static activations
KEYS = ("quantization_config", "compression_config")  # the second of older compressed-tensors
SIDE_FILES = {  # AutoGPTQ's, AutoAWQ's and ModelOpt's
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}


def read_quantisation(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The config's object on quantisation with its `quant_method`, or that of the separate file;
    empty where there is none.  Raises `CheckpointError`.
    """
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        for key in KEYS:
            found = place.get(key)
            if found is None or found == {}:
                continue
            if not isinstance(found, Mapping):
                raise CheckpointError(
                    f"{path / 'config.json'}: {key} = {shown(found)}; an object expected"
                )
            return {"quant_method": "compressed-tensors", **found} if key != KEYS[0] else {**found}
    for name, method in SIDE_FILES.items():
        if (path / name).is_file():
            given = read_json(path / name)
            inner = given.get("quantization")  # ModelOpt's, next to its own name
            return {"quant_method": method, **(inner if isinstance(inner, Mapping) else given)}
    return {}


@dataclass(frozen=True, slots=True)
class FilePart:
    """A `formats.claims.Part`: a tensor in a file."""

    name: str
    file: MappedFile
    span: Span

    def rows(self, start: int, stop: int, axes: int = 1) -> NDArray[Any]:
        view = self._view()
        if axes > 1:
            view = view.reshape(math.prod(view.shape[:axes]), *view.shape[axes:])
        return self._copy(view[start:stop])

    def columns(self, start: int, stop: int) -> NDArray[Any]:
        return self._copy(self._view()[:, start:stop])

    def all(self) -> NDArray[Any]:
        return self._copy(self._view())

    def _view(self) -> NDArray[Any]:
        span = self.span
        shape = span.shape if span.kind != "f4" else (*span.shape[:-1], span.shape[-1] // 2)
        strides = span.strides or None
        return np.ndarray(shape, DTYPES[span.kind], self.file.buffer, span.offset, strides)

    def _copy(self, view: NDArray[Any]) -> NDArray[Any]:
        found = np.array(view, view.dtype.newbyteorder("="), order="C")
        self.file.drop(self.span.offset, self.span.nbytes)
        return found


def read_matrix(claim: Claim, parts: Mapping[str, Part], start: int, stop: int, what: str) -> Rows:
    """Rows of a claimed matrix: what kernels read, or bfloat16 bits where none reads its codes.
    `what` names it in errors.
    """
    rows = claim.parse(parts, start, stop)
    if not isinstance(rows, GroupedWeight):
        return rows
    largest, columns = find_bound(rows), rows.shape[1]
    most = MOST_SUM / LARGE / columns
    if largest > most:
        raise CheckpointError(
            f"{what} has scales that are too large: times their codes they come to {largest:.3g}; "
            f"at most {most:.3g} expected, for sums of {columns} products to be finite"
        )
    if rows.input_scale * MOST_CODE > LARGE:
        raise CheckpointError(
            f"{what} has an input_scale that is too large: {rows.input_scale:.3g}; at most "
            f"{LARGE / MOST_CODE:.3g} expected, for sums of products to be finite"
        )
    return to_bf16_bits(rows.dequantize()) if claim.kind == "bf16" else rows


def find_bound(rows: GroupedWeight) -> float:
    """What no value of the rows exceeds, from the scales alone.  Formats of several tensors have no
    super-groups.
    """
    table = [abs(value) for value in rows.values if math.isfinite(value)]
    code = max(table, default=1 << rows.bits)
    zero = abs(rows.zero) if rows.zeros is None else _find_largest(rows.zeros)
    scale = _find_largest(rows.scales)
    if rows.scales is not None and rows.scales.dtype == np.uint8:
        scale = 2.0 ** (scale - 128)
    low = 0.0 if rows.mins is None else _find_largest(rows.mins)
    return (scale * (code + zero) + low) * _find_largest(rows.row_scales)


def _find_largest(numbers: NDArray[Any] | None) -> float:
    """The largest magnitude; 1 where there are none."""
    return 1.0 if numbers is None else float(np.abs(widen(numbers)).max(initial=0))
