"""The inline assembly that opens codes of K and V, in NumPy (ptx.py): each code at each place."""

import numpy as np
import ptx
import pytest

from flyweight.ops.base import from_bf16_bits
from flyweight.ops.cuda.kernels import store_codes
from flyweight.ops.reference_kv import FLOATS
from flyweight.wire import F64

BYTES = np.stack([np.roll(np.arange(256, dtype=np.uint8), i) for i in range(4)], axis=-1)


def open_words(asm: str, outputs: int) -> list[F64]:
    """Numbers [256, 4] of the four bytes of each word, two outputs a time."""
    words = ptx.run(asm, outputs, [BYTES.copy().view(np.uint32)[:, 0]])
    halves = [np.stack([word & 0xFFFF, word >> 16], -1).astype(np.uint16) for word in words]
    numbers = [from_bf16_bits(half).astype(np.float64) for half in halves]
    return [np.concatenate(numbers[i : i + 2], axis=-1) for i in range(0, outputs, 2)]


def test_int8() -> None:
    (numbers,) = open_words(store_codes.OPEN_INT8.value, 2)
    assert (numbers == BYTES.view(np.int8)).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: str) -> None:
    mantissa, bias = FLOATS[dtype]
    asm = store_codes.OPEN_E4M3 if dtype == "fp8_e4m3" else store_codes.OPEN_E5M2
    (numbers,) = open_words(asm.value, 2)
    whole, rest = np.divmod(BYTES & 127, 2**mantissa)
    want = np.ldexp(1 + rest / 2**mantissa, whole.astype(int) - bias)
    want = np.where(BYTES & 127 == 0, 0, want) * np.where(BYTES & 128, -1, 1)
    stored = (whole > 0) | (rest == 0)  # subnormals are not stored
    assert (numbers == want)[stored].all()
