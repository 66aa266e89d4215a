"""What a model file says about one tensor, before any of it is read.

Invariant: names are Hugging Face's, shapes are [N, K] row-major, kinds are those of `formats`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`kind` is a key of `formats.FORMATS`, or "u8" for bytes: half a tensor (mxfp4.py), a mask."""

    name: str
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies: `nbytes` bytes from `offset` bytes into its file, which is number
    `part` of those the model is cut into.
    """

    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int
    part: int = 0
