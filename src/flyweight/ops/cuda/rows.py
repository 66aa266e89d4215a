"""Norms, activations and what else works on one row at a time."""

import torch
from torch import Tensor


def norm(x: Tensor, w: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    raise NotImplementedError


def add_norm(x: Tensor, residual: Tensor, w: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    raise NotImplementedError


def layer_norm(x: Tensor, w: Tensor, b: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    raise NotImplementedError


def layer_norm_heads(x: Tensor, w: Tensor, eps: float) -> None:
    raise NotImplementedError


def act(x: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    raise NotImplementedError


def activate(x: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    raise NotImplementedError


def softcap(x: Tensor, cap: float) -> None:
    raise NotImplementedError


def gate(x: Tensor, logits: Tensor) -> None:
    raise NotImplementedError
