"""GPTQ's layout (AutoGPTQ, GPTQModel; Frantar et al., 2022): of a matrix [N, K] with groups of g,

    M.qweight  int32 [K bits / 32, N]    codes, consecutive K in a word
    M.qzeros   int32 [K / g, N bits / 32]    zero points, less 1 in the first version
    M.scales   float [K / g, N]
    M.g_idx    int32 [K], optional    the group of each element of K (act-order)

Invariant: w = scale * (code - zero).  Three bits are 32 codes in three words.  Where the config has
`dynamic` modules differ in bits and groups: the shapes say which of those that the config names a
matrix has.  Patterns of `dynamic` are not matched: an untrusted one may never end.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight, WeightLayout, name_kind, widen
from flyweight.validation.untrusted import shown, spell
from flyweight.weights.formats.claims import (
    SCALES,
    Claim,
    Folder,
    MatrixScheme,
    Part,
    Parts,
    check_finite,
    find_group,
    repeat_groups,
    sort_columns,
    unpack_words,
)
from flyweight.wire import I32

CODES, POINTS, SCALE, ORDER = ".qweight", ".qzeros", ".scales", ".g_idx"
BITS = (2, 3, 4, 8)
LEFT_OUT = "-:"  # begins the patterns of modules that are not quantised
VERSIONS = {"gptq": 1, "gptq_v2": 0}  # what is missing of the stored zero points


def claim(folder: Folder, modules: str = "dynamic") -> dict[str, Claim]:
    """Every matrix of the folder in this layout, by the name of its weight.  `modules` is the key
    of the config that has those which differ.
    """
    folder.choose("checkpoint_format", tuple(VERSIONS), "gptq")
    order, other = folder.config.get("desc_act"), folder.config.get("actOrder")
    if None not in (order, other) and order != other:
        folder.refuse(f"actOrder = {spell(other)} contradicts desc_act = {spell(order)}")
    stated = _read_stated(folder, modules)
    return {
        f"{stem}.weight": claim_matrix(folder, stem, stated) for stem in folder.list_stems(CODES)
    }


@dataclass(frozen=True, slots=True)
class StatedSizes:
    """What the config says of all matrices: the bits and groups (-1: a row) that one may have, the
    first of each unless there are `dynamic` modules; whether zero points are the middle of all,
    and columns of any in another order.
    """

    bits: tuple[int, ...]
    groups: tuple[int, ...]
    dynamic: bool
    symmetric: bool
    ordered: bool


def _read_stated(folder: Folder, modules: str) -> StatedSizes:
    named = folder.read_object(modules)
    places = [folder]
    for name, given in named.items():
        if name.startswith(LEFT_OUT):
            continue
        if not isinstance(given, Mapping):
            folder.refuse(f"{modules}[{shown(name)}] = {spell(given)}; an object expected")
            continue
        config = {**folder.config} | {
            key: value for key, value in given.items() if value is not None
        }
        path = f"{folder.path}.{modules}[{shown(name)}]"
        places.append(Folder(config, folder.tensors, folder.where, path=path))
    return StatedSizes(
        bits=tuple(dict.fromkeys(one.choose("bits", BITS) for one in places)),
        groups=tuple(dict.fromkeys(map(_read_group, places))),
        dynamic=bool(named),
        symmetric={one.choose("sym", (True, False), False) for one in places} == {True},
        ordered=True in {one.choose("desc_act", (False, True), False) for one in places},
    )


def _read_group(folder: Folder) -> int:
    group: Any = folder.config.get("group_size")
    group = -1 if group is None else group
    if not isinstance(group, int) or isinstance(group, bool) or not (group == -1 or group >= 8):
        folder.refuse(f"group_size = {spell(group)}; -1 or a whole number from 8 expected")
    return int(group)


def claim_matrix(folder: Folder, stem: str, stated: StatedSizes) -> Claim:
    what = shown(stem + CODES)
    words, n = folder.check(stem + CODES, ("i32",), (None, None), "a GPTQ matrix").shape
    bits, size = stated.bits[0], stated.groups[0]
    if stated.dynamic:
        bits, size = _find_sizes(folder, stem, stated, (words, n))
    k = words * 32 // bits
    group = k if size == -1 else size
    if not k or k % group or k % 32 or n * bits % 32:
        raise CheckpointError(
            f"{folder.where}: tensor {what} has {k} x {n} codes of {bits} bits; columns must be a "
            f"multiple of group_size = {group} and of 32, and zero points fill whole words"
        )
    scales = folder.check(stem + SCALE, tuple(SCALES), (k // group, n), what)
    folder.check(stem + POINTS, ("i32",), (k // group, n * bits // 32), what)
    parts = {"codes": stem + CODES, "points": stem + POINTS, "scales": stem + SCALE}
    sorted_first, symmetric = stated.ordered, stated.symmetric
    if stem + ORDER in folder.tensors:
        folder.check(stem + ORDER, ("i32", "i64"), (k,), what)
        parts["order"] = stem + ORDER
    elif sorted_first and not stated.dynamic and not folder.config.get("static_groups"):
        folder.check(stem + ORDER, ("i32",), (k,), f"{what} with desc_act = true")
    found = GptqMatrix(
        f"{folder.where}: tensor {what}",
        (n, k),
        bits,
        group,
        symmetric=symmetric and bits in (4, 8),
        ordered=sorted_first and "order" in parts and group < k,
        missing=VERSIONS[folder.config.get("checkpoint_format") or "gptq"],
    )
    scheme = MatrixScheme(bits, size, symmetric, sorted_first)
    return Claim((n, k), found.name_kind(SCALES[scales.kind]), parts, found.parse, scheme)


def _find_sizes(
    folder: Folder, stem: str, stated: StatedSizes, shape: tuple[int, int]
) -> tuple[int, int]:
    """Bits and the group (-1: a row) that the shapes have, of those that the config names."""
    words, n = shape
    points = folder.check(stem + POINTS, ("i32",), (None, None), shown(stem + CODES))
    groups, columns = points.shape
    for bits in stated.bits:
        k = words * 32 // bits
        for size in stated.groups:
            if n * bits == 32 * columns and k == groups * (k if size == -1 else size):
                return bits, size
    listed = (", ".join(map(str, each)) for each in (stated.bits, stated.groups))
    raise CheckpointError(
        f"{folder.where}: tensor {shown(stem + POINTS)} is {list(points.shape)}, which fits none "
        "of the bits {} and groups {} of quantization_config for ".format(*listed)
        + f"{shown(stem + CODES)} [{words}, {n}]"
    )


@dataclass(frozen=True, slots=True)
class GptqMatrix:
    """How one matrix is read.  `missing` is added to the stored zero points; `symmetric` ones must
    all be the middle and are not kept.
    """

    where: str
    shape: tuple[int, int]
    bits: int
    group: int
    symmetric: bool
    ordered: bool
    missing: int

    @property
    def by_row(self) -> bool:
        """One scale a row, which kernels take last."""
        return self.symmetric and self.group == self.shape[1]

    @property
    def read(self) -> int:
        """The group that kernels read, or the published one where there is no such."""
        return find_group(self.group, self.shape[1]) or self.group

    def name_kind(self, scales: str) -> str:
        codes = "int8" if self.symmetric and self.bits == 8 else "uint8"
        points = "" if self.symmetric else scales if self._wide else "uint8"
        middle = 8 if self.symmetric and self.bits == 4 else 0
        layout = WeightLayout(
            self.bits,
            32 if self.by_row else self.read,
            middle,
            codes,
            "" if self.by_row else scales,
            zeros=points,
            row_scaled=self.by_row,
            ordered=self.ordered,
        )
        return name_kind(layout) or "bf16"

    @property
    def _wide(self) -> bool:
        """Zero points up to 256, which a byte does not hold."""
        return self.bits == 8 and self.missing == 1

    def parse(self, parts: Parts, start: int, stop: int) -> GroupedWeight:
        codes = np.ascontiguousarray(
            unpack_words(parts["codes"].columns(start, stop), self.bits, 0).T
        )
        scales = np.ascontiguousarray(parts["scales"].columns(start, stop).T)
        check_finite(parts["scales"], scales, self.where)
        points = self._read_points(parts["points"], start, stop)
        columns = self._find_columns(parts["order"]) if "order" in parts else None
        if columns is not None:
            codes = np.take(codes, columns, axis=1)  # those of a group side by side
        shape, times = (stop - start, self.shape[1]), self.group // self.read
        if not self.symmetric:
            zeros = repeat_groups(
                _store(points, scales) if self._wide else points.astype(np.uint8), times
            )
            scales = repeat_groups(scales, times)
            return GroupedWeight(
                shape, self.bits, self.read, codes, scales, zeros=zeros, columns=columns
            )
        self._check_middle(parts["points"], points)
        zero = 8
        if self.bits == 8:
            codes, zero = (codes ^ np.uint8(128)).view(np.int8), 0
        if self.by_row:
            rows = widen(scales)[:, 0]
            return GroupedWeight(shape, self.bits, 32, codes, None, zero, row_scales=rows)
        scales = repeat_groups(scales, times)
        return GroupedWeight(shape, self.bits, self.read, codes, scales, zero, columns=columns)

    def _read_points(self, part: Part, start: int, stop: int) -> NDArray[np.int32]:
        """Zero points [rows, K / g]; the words that hold those of rows [start, stop)."""
        per = 32 // math.gcd(32, self.bits)  # rows whose zero points fill whole words
        first, last = start // per, -(-stop // per)
        words = part.columns(first * per * self.bits // 32, last * per * self.bits // 32)
        points = unpack_words(words, self.bits, 1)[:, start - first * per :][:, : stop - start]
        return np.ascontiguousarray(points.T.astype(np.int32) + self.missing)

    def _check_middle(self, part: Part, points: NDArray[np.int32]) -> None:
        middle = 1 << (self.bits - 1)
        odd = points[points != middle]
        if odd.size:
            raise CheckpointError(
                f"{self.where}: {shown(part.name)} holds the zero point {int(odd[0])}, but "
                f"quantization_config.sym = true, whose zero points are all {middle}"
            )

    def _find_columns(self, part: Part) -> I32 | None:
        """Which element each code belongs to, or None where codes are in order."""
        columns = sort_columns(part, self.group, self.where)
        if self.ordered:
            return columns
        if (columns != np.arange(self.shape[1])).any():
            raise CheckpointError(
                f"{self.where}: {shown(part.name)} puts columns in another order, but "
                "quantization_config.desc_act = false"
            )
        return None


def _store(points: NDArray[np.int32], scales: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers up to 256 as floats of the type of the scales, exactly."""
    if scales.dtype != np.uint16:
        return points.astype(scales.dtype)
    return (points.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
