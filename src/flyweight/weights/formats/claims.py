"""How a format of several tensors a matrix is read: it claims the tensors of a folder that make up
a matrix, and parses rows of them into one `GroupedWeight`.

Invariant: a claim is made from the config and the headers alone; every lie of theirs is a
`CheckpointError` that names the tensor or the config's field, its value, and what is expected.
Knows no container: `Part` is what a format sees of a tensor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError, nearest
from flyweight.ops.grouped import GROUPS, GroupedWeight
from flyweight.validation.untrusted import shown
from flyweight.weights.tensorinfo import TensorInfo
from flyweight.wire import U8

# NumPy's types of what a folder's tensors hold; floats of 8 bits and bfloat16 are their bits.
DTYPES = {
    "f32": "<f4", "f16": "<f2", "bf16": "<u2", "f64": "<f8", "i64": "<i8", "i32": "<i4",
    "i16": "<i2", "i8": "i1", "u8": "u1", "e4m3": "u1", "e5m2": "u1", "e8m0": "u1",
}  # fmt: skip
SCALES = {"f16": "float16", "bf16": "uint16", "f32": "float32"}  # arrays of scales, by kind


class Part(Protocol):
    """One tensor of a claim.  Arrays are copies, of the type in `DTYPES`."""

    @property
    def name(self) -> str: ...
    def rows(self, start: int, stop: int) -> NDArray[Any]: ...
    def columns(self, start: int, stop: int) -> NDArray[Any]: ...
    def all(self) -> NDArray[Any]: ...


Parts = Mapping[str, Part]
Rows = GroupedWeight | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A matrix: `shape` is what a model asks for, [N, K] or [E, N, K], `kind` what it is packed as
    (`ops.grouped.name_kind`, or a dense kind where no kernel reads the codes), `parts` the names of
    its tensors by role.  `parse` gives rows [start, stop), leading axes counting as rows.
    """

    shape: tuple[int, ...]
    kind: str
    parts: Mapping[str, str]
    parse: Callable[[Parts, int, int], Rows]


@dataclass(frozen=True, slots=True)
class Folder:
    """What a format may look at: the quantisation's config, the tensors by name, and `where` the
    folder is, for errors.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    where: str

    def list_stems(self, suffix: str) -> Iterator[str]:
        """Names of tensors that end in `suffix`, without it."""
        return (name.removesuffix(suffix) for name in self.tensors if name.endswith(suffix))

    def choose(self, key: str, allowed: Sequence[Any], default: Any = None) -> Any:
        """The config's value of a key, one of `allowed`."""
        value = self.config.get(key, default)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            near = nearest(str(value), [str(one) for one in allowed])
            self.refuse(f"{key} = {shown(value)}; one of {', '.join(map(str, allowed))}{near}")
        return value

    def read_whole(self, key: str, low: int, default: int | None = None) -> int:
        """The config's value of a key, a whole number of at least `low`."""
        value = self.config.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            self.refuse(f"{key} = {shown(value)}; a whole number from {low} expected")
        return int(value)

    def refuse(self, message: str) -> None:
        raise CheckpointError(f"{self.where}: quantization_config.{message}")

    def check(
        self, name: str, kinds: Sequence[str], shape: Sequence[int | None], what: str
    ) -> TensorInfo:
        """A tensor of one of these kinds and this shape, None for any size; `what` says whose
        companion it is.
        """
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.where}: tensor {shown(name)} is missing; {what} needs it")
        fits = len(info.shape) == len(shape) and all(
            want in (None, got) for want, got in zip(shape, info.shape, strict=True)
        )
        if info.kind not in kinds or not fits:
            wanted = [("any" if n is None else n) for n in shape]
            raise CheckpointError(
                f"{self.where}: tensor {shown(name)} is {info.kind} {list(info.shape)}; "
                f"{' or '.join(kinds)} {wanted} expected for {what}".replace("'any'", "any")
            )
        return info


def find_group(group: int, k: int) -> int:
    """The group that kernels read in place of one of `group` elements (-1 or K: a row): itself, or
    a narrower one that divides it, whose scales are repeated; 0 where there is none.
    """
    group = k if group in (-1, 0) else group
    return next((g for g in reversed(GROUPS) if group % g == 0 and k % g == 0), 0)


def repeat_groups(numbers: NDArray[Any], times: int) -> NDArray[Any]:
    """[N, groups] for groups that are `times` narrower."""
    return np.repeat(numbers, times, axis=1) if times > 1 else np.ascontiguousarray(numbers)


def unpack_words(words: NDArray[Any], bits: int, axis: int) -> U8:
    """Codes of 2, 4 or 8 bits out of int32 words, the first in the lowest bits, along an axis."""
    lanes = 32 // bits
    moved = np.moveaxis(words.view(np.uint32), axis, -1)
    shifts = np.arange(lanes, dtype=np.uint32) * np.uint32(bits)
    codes = (moved[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    flat = codes.astype(np.uint8).reshape(*moved.shape[:-1], moved.shape[-1] * lanes)
    return np.moveaxis(flat, -1, axis)


def check_finite(part: Part, numbers: NDArray[Any], where: str) -> None:
    """Scales and zero points must be numbers."""
    values = numbers
    if numbers.dtype == np.uint16:
        bad = (numbers & 0x7F80) == 0x7F80
    elif values.dtype.kind == "f":
        bad = ~np.isfinite(values)
    else:
        return
    if bad.any():
        raise CheckpointError(f"{where}: tensor {shown(part.name)} has values that are not finite")
