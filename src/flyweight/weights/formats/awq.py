"""AWQ's GEMM layout (AutoAWQ; Lin et al., 2023): of a matrix [N, K] with groups of g, 4 bits,

    M.qweight  int32 [K, N / 8]    codes of eight rows in a word, in the order ORDER
    M.qzeros   int32 [K / g, N / 8]    zero points, likewise
    M.scales   float [K / g, N]

Invariant: w = scale * (code - zero).
"""

from dataclasses import dataclass

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight, WeightLayout, name_kind
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
)
from flyweight.wire import U8

CODES, POINTS, SCALE = ".qweight", ".qzeros", ".scales"
BITS, LANES, MIDDLE = 4, 8, 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight rows each code of a word belongs to


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder in this layout, by the name of its weight."""
    bits, group = ("w_bit", "q_group_size") if "w_bit" in folder.config else ("bits", "group_size")
    for one, other in ((bits, "bits"), (group, "group_size")):  # of AutoAWQ's own, transformers'
        held, same = folder.config.get(one), folder.config.get(other)
        if None not in (held, same) and held != same:
            folder.refuse(f"{one} = {spell(held)} contradicts {other} = {spell(same)}")
    folder.choose(bits, (BITS,))
    for key in ("checkpoint_format", "format"):  # GPTQModel's names of the version
        folder.choose(key, ("gemm",), "gemm")
    if str(folder.config.get("version", "gemm")).lower() != "gemm":
        folder.choose("version", ("gemm",))
    size = folder.config.get(group)
    if size != -1:
        size = folder.read_whole(group, 8)
    return {f"{stem}.weight": claim_matrix(folder, stem, size) for stem in folder.list_stems(CODES)}


def claim_matrix(folder: Folder, stem: str, size: int) -> Claim:
    what = shown(stem + CODES)
    k, words = folder.check(stem + CODES, ("i32",), (None, None), "an AWQ matrix").shape
    n, group = words * LANES, k if size == -1 else size
    if not k or k % group or k % 32:
        raise CheckpointError(
            f"{folder.where}: tensor {what} has {k} columns; they must be a multiple of "
            f"group_size = {group} and of 32"
        )
    scales = folder.check(stem + SCALE, tuple(SCALES), (k // group, n), what)
    folder.check(stem + POINTS, ("i32",), (k // group, words), what)
    read = find_group(group, k) or group
    plain = not folder.choose("zero_point", (True, False), True)
    found = AwqMatrix(f"{folder.where}: tensor {what}", k, group, read, plain)
    zero, zeros = (MIDDLE, "") if plain else (0, "uint8")
    layout = WeightLayout(BITS, read, zero, scales=SCALES[scales.kind], zeros=zeros)
    parts = {"codes": stem + CODES, "points": stem + POINTS, "scales": stem + SCALE}
    scheme = MatrixScheme(BITS, size, sym=plain)
    return Claim((n, k), name_kind(layout) or "bf16", parts, found.parse, scheme)


@dataclass(frozen=True, slots=True)
class AwqMatrix:
    """How one matrix is read: kernels take a group of `group` columns as several of `read`.  The
    zero points of a `plain` one must all be the middle and are not kept.
    """

    where: str
    k: int
    group: int
    read: int
    plain: bool

    def parse(self, parts: Parts, start: int, stop: int) -> GroupedWeight:
        scales = parts["scales"].columns(start, stop).T
        check_finite(parts["scales"], scales, self.where)
        times = self.group // self.read
        zeros = _read_rows(parts["points"], start, stop)
        if self.plain and (zeros != MIDDLE).any():
            raise CheckpointError(
                f"{self.where}: {shown(parts['points'].name)} holds the zero point "
                f"{zeros[zeros != MIDDLE][0]}, but quantization_config.zero_point = false, whose "
                f"zero points are all {MIDDLE}"
            )
        return GroupedWeight(
            (stop - start, self.k),
            BITS,
            self.read,
            _read_rows(parts["codes"], start, stop),
            repeat_groups(scales, times),
            MIDDLE if self.plain else 0,
            zeros=None if self.plain else repeat_groups(zeros, times),
        )


def _read_rows(part: Part, start: int, stop: int) -> U8:
    """Rows [start, stop) of the codes or zero points: columns of the file's words."""
    first, last = start // LANES, -(-stop // LANES)
    words = np.ascontiguousarray(part.columns(first, last).view(np.uint32).T)
    rows, codes = np.empty((len(words), LANES, words.shape[1]), np.uint8), np.empty_like(words)
    for lane, row in enumerate(ORDER):
        np.right_shift(words, np.uint32(BITS * lane), out=codes)
        np.bitwise_and(codes, np.uint32(15), out=codes)
        rows[:, row] = codes
    flat = rows.reshape(len(words) * LANES, words.shape[1])
    return flat[start - first * LANES :][: stop - start]
