"""Triton's interpreter as a GPU computes, for tests on a CPU.

It cuts float32 off where it stores bfloat16; a GPU rounds to the nearest even one, and so does the
interpreter here.  Its dot products are NumPy's, whose order of a sum depends on the shape; here
they are rounded once, from float64.  Loops whose bounds are computed need int() of an array of one
number, which NumPy 2.4 refuses.
"""

from typing import Any

import numpy as np


def round_to_nearest() -> None:
    from triton import language as tl
    from triton.runtime import interpreter

    from flyweight.ops.base import to_bf16_bits

    builder: Any = interpreter.InterpreterBuilder
    cut = builder.create_fp_trunc

    def create_fp_trunc(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            bits = to_bf16_bits(src.data).reshape(src.data.shape)
            return interpreter.TensorHandle(bits, dst_type.scalar)
        return cut(self, src, dst_type)

    builder.create_fp_trunc = create_fp_trunc


def dot_in_order() -> None:
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    plain = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        if a.data.dtype != np.float32 or b.data.dtype != np.float32:
            return plain(self, a, b, d, precision, imprecise)
        total = np.matmul(a.data, b.data, dtype=np.float64) + d.data
        return interpreter.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)

    builder.create_dot = create_dot


class _Whole(type):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, int)


class _Int(int, metaclass=_Whole):
    """int() that takes an array of one number."""

    def __new__(cls, x: Any = 0, *more: Any) -> Any:
        return int(x.item() if isinstance(x, np.ndarray) else x, *more)


def correct_interpreter() -> None:
    """Once, after TRITON_INTERPRET is set and before a kernel is defined."""
    import triton.runtime.interpreter

    round_to_nearest()
    dot_in_order()
    triton.runtime.interpreter.int = _Int
