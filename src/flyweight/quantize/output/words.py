"""Codes of 2, 3, 4 and 8 bits in words of 32: the inverse of `weights.formats.claims.unpack_words`.

Invariant: the first code is in the lowest bits of the first word; codes of 3 bits run on from word
to word.
"""

import numpy as np
from numpy.typing import NDArray

from flyweight.wire import U8


def pack_words(codes: U8, bits: int) -> NDArray[np.int32]:
    """[rows, n] codes to [rows, n * bits / 32] words, along the last axis."""
    rows, count = codes.shape
    assert count * bits % 32 == 0, "codes fill whole words"
    if bits == 8:
        return np.ascontiguousarray(codes).view("<i4")
    if bits in (2, 4):
        per = 8 // bits
        lanes = codes.reshape(rows, count // per, per)
        packed = lanes[:, :, 0].copy()
        for lane in range(1, per):
            packed |= lanes[:, :, lane] << np.uint8(lane * bits)
        return packed.view("<i4")
    bitstream = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(bitstream.reshape(rows, count * bits), axis=1, bitorder="little").view("<i4")
