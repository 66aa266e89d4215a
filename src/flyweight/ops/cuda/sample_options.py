"""The sampling options of a step as the kernels read them, in one transfer.

Invariant: what depends on options alone is computed here in NumPy, with the reference's rounding.
Knows no logits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flyweight.ops.reference_sample import SHARPEST, WORD
from flyweight.wire import F64, I32, I64, U64, SampleBatch

FINENESS = 32  # buckets a step of 1 in ln(weight), or in the logits where that is less
COARSEST = 1e30
LOG2E = np.float32(1.4426950408889634)
DTYPES = {
    "f8": torch.float64, "i8": torch.int64, "f4": torch.float32, "i4": torch.int32,
}  # fmt: skip


@dataclass(slots=True)
class DrawPlan:
    """Which rows need what, known on the host."""

    s: SampleBatch
    vocab: int
    given: I32  # [R] the token where it is known, else -1
    mu: F64 | None  # [R]
    drawn: I64  # rows drawn by the kernel
    wanted: I64  # rows whose log-probabilities are wanted
    width: int  # best ids of those rows

    @property
    def draws(self) -> bool:
        return bool((self.given < 0).any())

    @property
    def best_count(self) -> int:
        return min(self.width, self.vocab)


def upload(arrays: dict[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Copies of the arrays on the device, by name."""
    starts, total = [], 0
    for array in arrays.values():
        starts.append(total)
        total += -(-array.nbytes // 16) * 16
    host = torch.empty(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = host.numpy()
    for array, start in zip(arrays.values(), starts, strict=True):
        flat[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = host.to(device, non_blocking=True)
    return {
        name: there[start : start + array.nbytes].view(DTYPES[array.dtype.str[1:]])
        for (name, array), start in zip(arrays.items(), starts, strict=True)
    }


def make_table(s: SampleBatch, rows: I64) -> F64:
    """[D,8] of the rows that are drawn, in the order of the fields in kernels/sample.py; all are
    exact in float64.
    """
    temperature = s.temperature[rows]
    with np.errstate(over="ignore"):
        sharps = np.minimum(np.float32(1) / temperature, SHARPEST)
        fines = np.minimum(FINENESS * np.maximum(temperature, 1), COARSEST).astype(np.float32)
    table = np.empty((len(rows), 8))
    table[:, 0] = draw_uniforms(s, rows)
    table[:, 1], table[:, 2], table[:, 3] = s.top_p[rows], s.min_p[rows], s.top_k[rows]
    table[:, 4], table[:, 5], table[:, 6] = sharps, fines, LOG2E / fines
    table[:, 7] = rows
    return table


def draw_uniforms(s: SampleBatch, rows: I64) -> F64:
    """`draw_uniform` of the reference, of many rows."""

    def scatter(keys: NDArray[np.int32], by: int) -> U64:
        return keys[rows].astype(np.int64).view(np.uint64) * np.uint64(by)

    h = _mix(s.seed[rows] + np.uint64(0x9E3779B97F4A7C15 & WORD))
    h = _mix(h ^ scatter(s.choice, 0xD1B54A32D192ED03))
    h = _mix(h ^ scatter(s.position, 0x8CB92BA72F3D8DD7))
    made: F64 = (h >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return made


def _mix(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = z ^ (z >> np.uint64(31))
    return mixed
