"""The GGUF files that a model can be quantised to, and what their weights take in memory.

Invariant: whichever types are chosen for a file's matrices, its weights take at most `more` bytes
beyond the file.  Reads no tensor; knows no limit.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from flyweight.ops.grouped import find_base
from flyweight.weights.formats import FORMATS

# In ascending size, of rows in blocks of 256, and of 32.
WIDE = ("q2_k", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0")
NARROW = ("iq4_nl", "q4_1", "q5_0", "q5_1", "q8_0")
FLOATS = ("f32", "f16", "bf16")
METADATA, TOKEN = 1 << 20, 64  # bytes of a file apart from tensors: in all, and for each token
Part = tuple[tuple[int, ...], str]  # shape and kind


@dataclass(frozen=True, slots=True)
class FileSizes:
    """No file has less than `least` bytes.  `more` may be negative.  `quantised`: matrices of the
    model already are.
    """

    least: int
    more: int
    quantised: bool

    def add(self, nbytes: int) -> Self:
        """The same with weights in memory that are not in the file."""
        return replace(self, more=self.more + nbytes)


def list_types(columns: int) -> tuple[str, ...]:
    """The types that may be chosen for rows of so many columns."""
    return WIDE if columns % 256 == 0 else NARROW if columns % 32 == 0 else ("f16",)


def measure_files(
    kinds: Mapping[str, Sequence[Part]], vocab: int, count: Callable[[tuple[int, int], str], int]
) -> FileSizes:
    """For matrices that take `count(shape, kind)` bytes in memory; vectors are float32 in both."""
    parts = Counter(part for slot in kinds.values() for part in slot)
    least, more, quantised = METADATA + TOKEN * vocab, 0, False
    for (shape, kind), times in parts.items():
        if len(shape) != 2:
            least += times * 4 * shape[0]
            continue
        types = list_types(shape[1])
        files = {one: FORMATS[one].count_bytes(shape) for one in (*types, *FLOATS)}
        beyond = [
            count((shape[0], shape[1]), FORMATS[one].packed) - size for one, size in files.items()
        ]
        least += times * files[types[0]]
        more += times * max(beyond)
        quantised |= find_base(kind) not in FLOATS
    return FileSizes(least, more, quantised)
