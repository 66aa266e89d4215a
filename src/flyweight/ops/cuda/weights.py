"""Weights on the device: dense matrices, and codes with their scales."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flyweight.ops.base import Part


@dataclass(frozen=True, slots=True)
class CudaWeight:
    """A packed matrix [N,K]."""

    shape: tuple[int, int]
    kind: str
    data: Tensor
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        raise NotImplementedError


def pack(
    shape: tuple[int, int], parts: Iterable[Part], bias: Any, device: torch.device
) -> CudaWeight:
    raise NotImplementedError


def count_packed_bytes(shape: tuple[int, int], kind: str) -> int:
    raise NotImplementedError
