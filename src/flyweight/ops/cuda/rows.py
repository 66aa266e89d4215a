"""Norms, activations and what else works on one row at a time: each one launch.

Invariant: a row's bits depend on that row and its width alone.  Knows the kernels' blocks and the
names of activations.
"""

import torch
from torch import Tensor

from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import GATED_ACTS, PLAIN_ACTS
from flyweight.ops.cuda.kernels import rows as kernels
from flyweight.ops.cuda.kernels.pdl import PDL

BLOCK = 1024  # elements of a program that takes each for itself
LARGEST = 16384  # elements of a row that a program holds at once; longer rows are read again
SHARE = 256  # elements of a row a warp takes, until there are WARPS
WARPS = 16


def norm(x: Tensor, w: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """RMS norm, [T,H] -> [T,H]."""
    x = _prepare(x)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if out.numel():
        width = x.shape[-1]
        block, warps = _choose_block(width)
        grid = (x.numel() // width,)
        kernels.norm_kernel[grid](
            x, x, w, out, eps, width, block, False, PDL, num_warps=warps, launch_pdl=PDL
        )
    return out


def add_norm(x: Tensor, residual: Tensor, w: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """residual += x in place, then RMS norm of it."""
    x, held = _prepare(x), _prepare(residual)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if out.numel():
        width = x.shape[-1]
        block, warps = _choose_block(width)
        grid = (x.numel() // width,)
        kernels.norm_kernel[grid](
            x, held, w, out, eps, width, block, True, PDL, num_warps=warps, launch_pdl=PDL
        )
        _keep(held, residual)
    return out


def layer_norm(x: Tensor, w: Tensor, b: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * w + b, [T,H] -> [T,H]."""
    x = _prepare(x)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if out.numel():
        width = x.shape[-1]
        block, warps = _choose_block(width)
        kernels.layer_norm_kernel[(x.numel() // width, 1)](
            x, w, w if b is None else b, out, eps, width, block, width, b is not None,
            PDL, num_warps=warps, launch_pdl=PDL,
        )  # fmt: skip
    return out


def layer_norm_heads(x: Tensor, w: Tensor, eps: float) -> None:
    """In place, the first H heads of each row, head h with weights w[h]."""
    held, (heads, dim) = _prepare(x), w.shape
    if x.numel():
        block, warps = _choose_block(dim)
        kernels.layer_norm_kernel[(x.shape[0], heads)](
            held,
            w,
            w,
            held,
            eps,
            dim,
            block,
            x.shape[1],
            False,
            PDL,
            num_warps=warps,
            launch_pdl=PDL,
        )
        _keep(held, x)


def act(x: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """[T,2I] (gate, then up) -> [T,I] = f(gate) * up."""
    check_gated(kind)
    x = _prepare(x)
    tokens, inner = x.shape[0], x.shape[1] // 2
    out = torch.empty((tokens, inner), dtype=dtype, device=x.device)
    if out.numel():
        grid = (tokens, -(-inner // BLOCK))
        kernels.act_kernel[grid](x, out, inner, kind, BLOCK, PDL, num_warps=4, launch_pdl=PDL)
    return out


def check_gated(kind: str) -> None:
    """Refuses the name of an activation that `act` does not know."""
    if kind not in GATED_ACTS:
        raise ConfigError(_describe_unknown(kind, GATED_ACTS))


def activate(x: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """f(x), element by element."""
    if kind not in PLAIN_ACTS:
        raise ConfigError(_describe_unknown(kind, PLAIN_ACTS))
    x = _prepare(x)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if count := x.numel():
        grid = (-(-count // BLOCK),)
        kernels.activate_kernel[grid](x, out, count, kind, BLOCK, PDL, num_warps=4, launch_pdl=PDL)
    return out


def softcap(x: Tensor, cap: float) -> None:
    """x = cap * tanh(x / cap) in place."""
    held = _prepare(x)
    if count := x.numel():
        grid = (-(-count // BLOCK),)
        kernels.softcap_kernel[grid](held, float(cap), count, BLOCK, num_warps=4)
        _keep(held, x)


def gate(x: Tensor, logits: Tensor) -> None:
    """x *= sigmoid(logits) in place, a number a row: [T,H], [T,1]."""
    held = _prepare(x)
    if x.numel():
        width = x.shape[1]
        grid = (x.shape[0], -(-width // BLOCK))
        kernels.gate_kernel[grid](held, _prepare(logits), width, BLOCK, num_warps=4)
        _keep(held, x)


def _choose_block(width: int) -> tuple[int, int]:
    """Elements that a program takes at once, and its warps: by the width of a row alone."""
    block = max(16, 1 << (width - 1).bit_length())
    block = min(block, LARGEST)
    return block, max(1, min(WARPS, block // SHARE))


def _prepare(x: Tensor) -> Tensor:
    """The same elements, contiguous and aligned as a kernel may take for granted."""
    if x.is_contiguous() and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _keep(held: Tensor, x: Tensor) -> None:
    """Puts back what was changed in a copy."""
    if held is not x:
        x.copy_(held)


def _describe_unknown(kind: str, known: tuple[str, ...]) -> str:
    return f"activation = {kind!r}; allowed: {', '.join(known)}{nearest(kind, known)}"
