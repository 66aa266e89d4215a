"""How a format of several tensors a matrix is read: it claims the tensors of a folder that make up
a matrix, and parses rows of them into one `GroupedWeight`.

Invariant: a claim is made from the config, the headers, and what little a format writes into
tensors instead of those (`Folder.read_note`); every contradiction in them is a `CheckpointError`
that names the tensor or the config's field, its value, and what is expected.
Knows no container: `Part` is what a format sees of a tensor.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError, nearest
from flyweight.ops.grouped import GROUPS, GroupedWeight, widen
from flyweight.validation.untrusted import shown, spell
from flyweight.weights.tensorinfo import TensorInfo
from flyweight.wire import F32, I32, U8

# NumPy's types of what a folder's tensors hold; bfloat16 and floats of 8 bits are their bits, of
# floats of 4 bits a byte holds two.
DTYPES = {
    "f32": "<f4", "f16": "<f2", "bf16": "<u2", "f64": "<f8", "i64": "<i8", "i32": "<i4",
    "i16": "<i2", "i8": "i1", "u8": "u1", "e4m3": "u1", "e5m2": "u1", "e8m0": "u1", "f4": "u1",
}  # fmt: skip
LEAST = float(np.finfo(np.float32).tiny)  # whose reciprocal is finite
SCALES = {"f16": "float16", "bf16": "uint16", "f32": "float32"}  # arrays of scales, by kind


class Part(Protocol):
    """One tensor of a claim.  Arrays are copies, of the type in `DTYPES`; with `axes` leading axes
    that many of them count as rows.
    """

    @property
    def name(self) -> str: ...
    def rows(self, start: int, stop: int, axes: int = 1) -> NDArray[Any]: ...
    def columns(self, start: int, stop: int) -> NDArray[Any]: ...
    def all(self) -> NDArray[Any]: ...


Parts = Mapping[str, Part]
Rows = GroupedWeight | NDArray[Any]


@dataclass(frozen=True, slots=True)
class MatrixScheme:
    """How the elements of a matrix are quantised, by the names that configs have for it: columns
    that share a scale (-1: all of a row), whether zero points are the middle of the codes, whether
    columns are in another order.  None where that means nothing for the format.
    """

    bits: int
    group_size: int
    sym: bool | None = None
    desc_act: bool | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A matrix: `shape` is what a model expects, [N, K] or [E, N, K], `kind` what it is packed as
    (`ops.grouped.name_kind`, or a dense kind where no kernel reads the codes), `parts` the names of
    its tensors by role.  `parse` gives rows [start, stop), leading axes counting as rows.
    """

    shape: tuple[int, ...]
    kind: str
    parts: Mapping[str, str]
    parse: Callable[[Parts, int, int], Rows]
    scheme: MatrixScheme


@dataclass(frozen=True, slots=True)
class Folder:
    """What a format may look at: the quantisation's config, the tensors by name, `where` the
    folder is, for errors, `part` to read a tensor, the free text of the files' headers, and `path`,
    where config.json has the config.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    where: str
    part: Callable[[str], Part] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    path: str = "quantization_config"

    def list_stems(self, suffix: str) -> Iterator[str]:
        """Names of tensors that end in `suffix`, without it."""
        return (name.removesuffix(suffix) for name in self.tensors if name.endswith(suffix))

    def choose(self, key: str, allowed: Sequence[Any], default: Any = None) -> Any:
        """The config's value of a key, one of `allowed`; null means the default."""
        value = self.config.get(key)
        value = default if value is None else value
        if type(value) is not type(allowed[0]) or value not in allowed:
            names = [one if isinstance(one, str) else spell(one) for one in allowed]
            near = "" if str(value) in names else nearest(str(value), names)
            allowed = f"one of {', '.join(names)}" if len(names) > 1 else f"{names[0]} expected"
            self.refuse(f"{key} = {spell(value)}; {allowed}{near}")
        return value

    def read_whole(self, key: str, low: int, default: int | None = None) -> int:
        """The config's value of a key, a whole number of at least `low`."""
        value: Any = self.config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            self.refuse(f"{key} = {spell(value)}; a whole number from {low} expected")
        return int(value)

    def read_object(self, key: str) -> Mapping[str, Any]:
        """The config's value of a key, an object; null and false mean an empty one."""
        value: Any = self.config.get(key)
        if value is None or value is False:
            return {}
        if not isinstance(value, Mapping):
            self.refuse(f"{key} = {spell(value)}; an object expected")
        return {**value}

    def refuse(self, message: str) -> None:
        raise CheckpointError(f"{self.where}: {self.path}.{message}")

    def read_note(
        self, name: str, kinds: Sequence[str], axes: int, what: str, most: int = 64
    ) -> NDArray[Any]:
        """The numbers of a small tensor that says how a matrix is stored."""
        info = self.check(name, kinds, (None,) * axes, what)
        if math.prod(info.shape) > most:
            raise CheckpointError(
                f"{self.where}: tensor {shown(name)} is {info.kind} {list(info.shape)}; at most "
                f"{most} numbers expected for {what}"
            )
        assert self.part is not None, "a folder whose tensors can be read"
        return self.part(name).all().reshape(-1)

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

    def check_codes(self, name: str, kinds: Sequence[str], axes: int, what: str) -> TensorInfo:
        """A tensor of one of these kinds with so many axes, none of them empty."""
        info = self.check(name, kinds, (None,) * axes, what)
        if 0 in info.shape:
            raise CheckpointError(
                f"{self.where}: tensor {shown(name)} is {info.kind} {list(info.shape)}; "
                f"no axis of {what} is empty"
            )
        return info

    def check_single(self, name: str, what: str) -> TensorInfo:
        """A tensor of one float, with an axis or without."""
        bare = name in self.tensors and self.tensors[name].shape == ()
        return self.check(name, tuple(SCALES), () if bare else (1,), what)


def find_group(group: int, k: int) -> int:
    """The group that kernels read in place of one of `group` elements (-1 or K: a row): itself, or
    a narrower one that divides it, whose scales are repeated; 0 where there is none.  Groups that
    run on from row to row are cut where rows end.
    """
    group = k if group in (-1, 0) else group
    return next((g for g in reversed(GROUPS) if group % g == 0 and k % g == 0), 0)


def repeat_groups(numbers: NDArray[Any], times: int) -> NDArray[Any]:
    """[N, groups] for groups that are `times` narrower."""
    return np.repeat(numbers, times, axis=1) if times > 1 else np.ascontiguousarray(numbers)


def unpack_codes(stream: U8, bits: int) -> U8:
    """[rows, bytes] -> [rows, bytes * 8 / bits]: codes, the first in the lowest bits of the first
    byte.  Rows are whole runs of 8 codes, or filled up with zeros.

    Eight codes at a time, as one word of 64 bits that is spread to bytes in three steps.
    """
    if bits == 8:
        return stream
    if stream.shape[1] % bits:
        stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % bits)))
    rows, size = stream.shape
    if bits in (2, 4):  # runs that are whole words
        words = np.ascontiguousarray(stream).view(f"<u{bits}").astype("<u8")
    else:
        runs = np.zeros((rows, size // bits, 8), np.uint8)
        runs[:, :, :bits] = stream.reshape(rows, size // bits, bits)
        words = runs.view("<u8")[:, :, 0]
    for held in (4, 2, 1):
        mask = sum(((1 << held * bits) - 1) << lane for lane in range(0, 64, 8 * held))
        words |= words << np.uint64(8 * held - held * bits)
        words &= np.uint64(mask)
    return words.view(np.uint8).reshape(rows, size // bits * 8)


def unpack_words(words: NDArray[Any], bits: int, axis: int) -> U8:
    """Codes out of [a, b] int32 words, along an axis; the first in the lowest bits.  Those of 3
    bits run on from word to word: 32 in three words.
    """
    turned = np.ascontiguousarray(words.T if axis == 0 else words)
    codes = unpack_codes(turned.view(np.uint8), bits)
    return codes.T if axis == 0 else codes


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


def raise_powers(part: Part, exponents: U8, where: str) -> F32:
    """Scales that are exponents (E8M0), 127 for 1."""
    check_powers(part, exponents, where)
    found: F32 = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return found


def check_powers(part: Part, exponents: U8, where: str) -> None:
    """Exponents of E8M0 must be numbers."""
    if (exponents == 255).any():
        raise CheckpointError(f"{where}: tensor {shown(part.name)} has values that are not finite")


def read_positive(part: Part, where: str) -> float:
    """The first number of scales that must all be above 0, and finite as their reciprocals are."""
    numbers = widen(part.all()).reshape(-1)
    bad = numbers[~((numbers >= LEAST) & (numbers <= 1 / LEAST))]
    if not bad.size and numbers.size:
        return float(numbers[0])
    found = float(bad[0]) if bad.size else "[]"
    near = bad.size and 0 < bad[0] < np.inf
    range_ = f"a scale from {LEAST:.2g} to {1 / LEAST:.2g}" if near else "a scale above 0"
    raise CheckpointError(f"{where}: {shown(part.name)} = {found}; {range_} expected")


def sort_columns(part: Part, group: int, where: str) -> I32:
    """The element of each code where those of a group are put side by side, of the group of each
    element (act-order).  Every group must have all its members.
    """
    order = part.all().astype(np.int64)
    groups = len(order) // group
    bad = order[(order < 0) | (order >= groups)]
    if bad.size:
        raise CheckpointError(f"{where}: {shown(part.name)} names group {bad[0]} of {groups}")
    counts = np.bincount(order, minlength=groups)
    odd = np.flatnonzero(counts != group)
    if odd.size:
        raise CheckpointError(
            f"{where}: {shown(part.name)} puts {counts[odd[0]]} columns into group {odd[0]}; every "
            f"group has {group}"
        )
    return np.argsort(order, kind="stable").astype(np.int32)
