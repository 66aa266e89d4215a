"""The few PTX instructions of the kernels' inline assembly, in NumPy, for Triton's interpreter: so
that what a GPU runs is tested without one.  Products of bfloat16 are computed as a GPU's.
"""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.base import from_bf16_bits, to_bf16_bits

U32 = NDArray[np.uint32]
FLOATS = "float16", "float32"


def run(asm: str, outputs: int, inputs: list[U32]) -> list[U32]:
    """The values of $0 ... after the instructions; $`outputs` is the first input."""
    held: dict[str, U32] = {f"${outputs + i}": x for i, x in enumerate(inputs)}
    for line in re.sub(r"[{}]", "", asm).split(";"):
        words = line.replace(",", " ").split()
        if not words or words[0] == ".reg":
            continue
        name, to, *rest = words
        given = [held[w] if w in held else np.uint32(int(w, 0)) for w in rest]
        held[to] = OPERATIONS[name](*given)
    return [held[f"${i}"] for i in range(outputs)]


def permute(a: U32, b: U32, at: U32) -> U32:
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(np.broadcast(a, b, at).shape, np.uint64)
    for i in range(4):
        chosen = (at.astype(np.uint64) >> np.uint64(4 * i)) & np.uint64(15)
        assert (chosen < 8).all(), "sign replication is not known here"
        byte = (both >> (chosen * np.uint64(8))) & np.uint64(255)
        out |= byte << np.uint64(8 * i)
    return out.astype(np.uint32)


def split(x: U32) -> NDArray[np.float64]:
    halves = np.stack([x & 0xFFFF, x >> 16], -1).astype(np.uint16)
    return from_bf16_bits(halves).astype(np.float64)


def join(x: NDArray[np.float64]) -> U32:
    bits = to_bf16_bits(x.astype(np.float32)).astype(np.uint32)
    return bits[..., 0] | bits[..., 1] << 16


def round_twice(high: U32, low: U32) -> U32:
    pair = np.stack([np.asarray(low, np.uint32), np.asarray(high, np.uint32)], -1)
    return join(pair.view(np.float32).astype(np.float64))


def choose(a: U32, b: U32, c: U32, table: U32) -> U32:
    assert int(table) == 0xEA
    return (a & b) | c


OPERATIONS: dict[str, Any] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b,
    "lop3.b32": choose,
    "prmt.b32": lambda a, b, c: permute(np.asarray(a), np.asarray(b), np.asarray(c)),
    "fma.rn.bf16x2": lambda a, b, c: join(split(a) * split(b) + split(c)),
    "cvt.rn.bf16x2.f32": round_twice,
}


def create_inline_asm(
    self: Any, asm: str, constraints: str, values: Any, types: Any, pure: bool, pack: int
) -> Any:
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    assert pack == 1
    outputs = constraints.count("=")
    shape = np.broadcast_shapes(*(v.data.shape for v in values))
    inputs = [np.broadcast_to(v.data, shape).copy().view(np.uint32) for v in values]
    found = [np.broadcast_to(x, shape).copy() for x in run(asm, outputs, inputs)]
    handles = [TensorHandle(x.view(np.int32), tl.int32) for x in found]
    return SimpleNamespace(get_result=lambda i: handles[i])


def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    from triton.runtime.interpreter import TensorHandle

    x, y = (from_bf16_bits(v.data) if v.data.dtype == np.uint16 else v.data for v in (a, b))
    total = np.matmul(x, y, dtype=np.float64) + d.data
    return TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)
