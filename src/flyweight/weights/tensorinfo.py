"""What a model file says about one tensor, before any of it is read.

Invariant: names are Hugging Face's, shapes are [N, K] row-major, kinds are those of `formats`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`kind` is a key of `formats.FORMATS`, or that of a tensor that is no weight by itself: "u8"
    for bytes (codes, a mask), "i64", "i32", "i16", "i8", "f64", floats of 8 bits "e4m3", "e5m2",
    "e8m0", and of 4 bits "f4", two a byte.
    """

    name: str
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a tensor: `nbytes` bytes from `offset` bytes into its file, which is number
    `part` of those the model is cut into.  `strides`, where its elements are not in order, are
    the bytes from one index to the next along each axis; elements never overlap.
    """

    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int
    part: int = 0
    strides: tuple[int, ...] = ()
