"""What codes represent in formats whose values are not evenly spaced.

Invariant: a table has a value for each code, in the order of the codes, exact in float32.
"""

import numpy as np

# The 16 values of ggml's non-linear 4-bit codes, and those of E2M1 (one sign, two exponent bits,
# one of mantissa), doubled so that all are whole.
NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

# 4-bit NormalFloat (Dettmers et al., 2023, QLoRA, appendix E) and bitsandbytes' FP4, which has one
# sign, two exponent bits and one of mantissa and is scaled to 1.
NF4 = tuple(
    float(np.float32(x))
    for x in (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    )
)  # fmt: skip
_HALF_FP4 = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
FP4 = tuple(float(np.float32(sign * x)) for sign in (1, -1) for x in _HALF_FP4)


def _list_floats(exponent: int, mantissa: int, bias: int) -> tuple[float, ...]:
    """All floats of 8 bits; the codes that represent no number are infinite."""
    values = []
    for code in range(256):
        e, m = code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1)
        size = (m / (1 << mantissa) + (e > 0)) * 2.0 ** (max(e, 1) - bias)
        values.append(-size if code >> 7 else size)
    return tuple(values)


def _without(values: tuple[float, ...], codes: range) -> tuple[float, ...]:
    return tuple(float("inf") if (i & 127) in codes else x for i, x in enumerate(values))


# OCP's 8-bit floats (Micikevicius et al., 2022): E4M3 without infinities, E5M2 like IEEE's.
E4M3 = _without(_list_floats(4, 3, 7), range(127, 128))
E5M2 = _without(_list_floats(5, 2, 15), range(124, 128))
