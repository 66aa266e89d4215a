"""Kernels for one row at a time: norms, activations, caps and gates.

Invariant: the block a row is summed in depends on the width of the row alone, so its bits do not
depend on other rows.  Sums and products are float32; results are rounded when they are
stored.  Callers give contiguous tensors that begin at multiples of 16 bytes: Triton orders a sum by
the alignment it is promised.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.pdl import start_next, wait_inputs


@triton.jit
def compute_sigmoid(x):
    return 1 / (1 + tl.exp(-x))  # exp(-x) = inf gives the right limit, 0


@triton.jit
def compute_tanh(x):
    """Within a few units in the last place of the result, near 0 too."""
    size = tl.abs(x)
    s = x * x
    p = -0.0065315112 * s + 0.0212671259  # of least squares, for (tanh(x) / x - 1) / s
    p = p * s - 0.0539025031
    p = p * s + 0.1333307860
    p = p * s - 0.3333333174
    p = x + x * s * p
    far = 1 - 2 / (tl.exp(2 * size) + 1)
    return tl.where(size < 0.5625, p, tl.where(x < 0, -far, far))


@triton.jit
def activate_one(x, KIND: tl.constexpr):
    """f(x) in float32.  Comparisons, not minima: NaN stays."""
    if KIND == "relu":
        y = tl.where(x < 0, 0.0, x)
    elif KIND == "silu":
        y = x * compute_sigmoid(x)
    elif KIND == "gelu":
        y = x * (0.5 + 0.5 * tl.math.erf(x * 0.70710678118654752))
    else:  # 0.5 (1 + tanh u) is sigmoid(2 u)
        y = x * compute_sigmoid(1.5957691216057308 * (x + 0.044715 * (x * x * x)))
    return y


@triton.jit
def gate_one(gate, up, KIND: tl.constexpr):
    """f(gate) * up in float32."""
    if KIND == "swiglu_clamped":
        gate = tl.where(gate > 7, 7.0, gate)
        up = tl.where(up > 7, 7.0, tl.where(up < -7, -7.0, up))
        y = gate * compute_sigmoid(1.702 * gate) * (up + 1)
    else:
        y = activate_one(gate, KIND) * up
    return y


@triton.jit
def norm_kernel(
    x, residual, w, out, eps, H: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """RMS norm of a row; with ADD of the residual, once it has the row."""
    start_next(PDL)
    wait_inputs(PDL)
    row = tl.program_id(0).to(tl.int64) * H
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < H, other=0).to(tl.float32)
        if ADD:
            v += tl.load(residual + row + cols, mask=cols < H, other=0)
            tl.store(residual + row + cols, v, mask=cols < H)
        total += v * v
    factor = 1 / tl.sqrt(tl.sum(total) / H + eps)
    for start in tl.static_range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        if H > BLOCK:  # else `v` still has the row
            source = residual if ADD else x
            v = tl.load(source + row + cols, mask=cols < H, other=0).to(tl.float32)
        y = v * factor * tl.load(w + cols, mask=cols < H, other=0)
        tl.store(out + row + cols, y.to(out.dtype.element_ty), mask=cols < H)


@triton.jit
def layer_norm_kernel(
    x, w, b, out, eps, H: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    BIASED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Layer norm of H elements, head `program_id(1)` of a row of WIDTH, each with its own
    weights; `out` may be `x`.
    """
    start_next(PDL)
    wait_inputs(PDL)
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * WIDTH + head * H
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < H, other=0).to(tl.float32)
        total += v
    mean = tl.sum(total) / H
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        if H > BLOCK:  # else `v` still has the row
            v = tl.load(x + row + cols, mask=cols < H, other=0).to(tl.float32)
        away = tl.where(cols < H, v - mean, 0)
        total += away * away
    factor = 1 / tl.sqrt(tl.sum(total) / H + eps)
    for start in tl.static_range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        if H > BLOCK:
            v = tl.load(x + row + cols, mask=cols < H, other=0).to(tl.float32)
        y = (v - mean) * factor * tl.load(w + head * H + cols, mask=cols < H, other=0)
        if BIASED:
            y += tl.load(b + cols, mask=cols < H, other=0)
        tl.store(out + row + cols, y.to(out.dtype.element_ty), mask=cols < H)


@triton.jit
def act_kernel(x, out, inner, KIND: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """[T,2I] -> [T,I]: the gate is the first half of a row."""
    start_next(PDL)
    wait_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x + row * 2 * inner + cols, mask=cols < inner, other=0).to(tl.float32)
    up = tl.load(x + row * 2 * inner + inner + cols, mask=cols < inner, other=0).to(tl.float32)
    y = gate_one(gate, up, KIND)
    tl.store(out + row * inner + cols, y.to(out.dtype.element_ty), mask=cols < inner)


@triton.jit
def activate_kernel(x, out, count, KIND: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    start_next(PDL)
    wait_inputs(PDL)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    y = activate_one(tl.load(x + at, mask=at < count, other=0).to(tl.float32), KIND)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def softcap_kernel(x, cap, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < count, other=0)
    tl.store(x + at, cap * compute_tanh(v / cap), mask=at < count)


@triton.jit
def gate_kernel(x, logits, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    factor = compute_sigmoid(tl.load(logits + row))
    v = tl.load(x + row * width + cols, mask=cols < width, other=0)
    tl.store(x + row * width + cols, v * factor, mask=cols < width)
