"""The device under test: a GPU where there is one, else Triton's interpreter on the CPU.  Skipped
where torch and Triton are not installed.

Triton's interpreter cuts float32 off where it stores bfloat16; a GPU rounds to the nearest even
one, and so does the interpreter here.
"""

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `cuda`)")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported
pytest.importorskip("triton", reason="triton is not installed (extra `cuda`)")


def _round_to_nearest() -> None:
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


if not torch.cuda.is_available():
    _round_to_nearest()


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
