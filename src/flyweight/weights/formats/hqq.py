"""HQQ's layout (Badri and Shaji, 2023), as hqq and transformers write it.  The elements of a matrix
M [N, K], one row after the other, are R = N K / g groups of g:

    M.W_q    the codes of [R, g] (axis 1), or of [g, R] (axis 0), packed along the first axis: with
        n codes a byte of 8, 4, 2 or 1 bits, row i holds rows i, i + R/n, i + 2R/n, ..., the first
        in the highest bits; 3 bits are ten in the lowest 30 of an int32
    M.scale, M.zero  floats [R, 1], or [1, R]
    M.nbits, M.group_size, M.axis, M.shape, M.view_as_float  numbers in tensors of their own

Invariant: w = scale * (code - zero).  5 and 6 bits are stored in bytes; 1 bit is read as 2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    Rows,
    check_finite,
    find_group,
)
from flyweight.wire import U8

CODES = ".W_q"
READ = {1: 2, 2: 2, 3: 3, 4: 4, 5: 8, 6: 8, 8: 8}  # bits of the kernel that reads such codes
LANES = {1: 8, 2: 4, 3: 10, 4: 2, 5: 1, 6: 1, 8: 1}  # codes in an element of W_q
BYTES = {"u8": 1, "f16": 2, "bf16": 2, "f32": 4, "i32": 4}
WHOLE = ("i32", "i64", "u8")
UNUSED = (
    "packing", "unpack_view_dtype", "quant_scale", "quant_zero", "compute_dtype", "offload_meta",
    "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize", "round_zero",
)  # fmt: skip


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder in this layout, by the name of its weight."""
    stated = list(_list_stated(folder))
    found = {f"{stem}.weight": claim_matrix(folder, stem) for stem in folder.list_stems(CODES)}
    for stem in folder.list_stems(CODES):
        _check_stated(folder, stem, stated)
    return found


def _list_stated(folder: Folder) -> Iterator[Folder]:
    """What the config says of weights: once for all, or for the modules of each name."""
    whole = folder.read_object("quant_config")
    for name in ("", *whole):
        path = f"{folder.path}.quant_config" + (f"[{shown(name)}]" if name else "")
        place = whole[name] if name else whole
        if not isinstance(place, Mapping):
            continue
        within = Folder(place, folder.tensors, folder.where, path=path)
        given = within.read_object("weight_quant_params")
        if given:
            yield Folder(given, folder.tensors, folder.where, path=f"{path}.weight_quant_params")


def _check_stated(folder: Folder, stem: str, stated: Sequence[Folder]) -> None:
    """The numbers of a matrix are those of the config, or of one of its parts."""
    for key in ("nbits", "group_size", "axis"):
        allowed = [one.config[key] for one in stated if one.config.get(key) is not None]
        name = f"{stem}.{key}"
        value = folder.read_note(name, (*WHOLE, "f32"), 0, shown(stem + CODES)).tolist()[0]
        close = [isinstance(x, int | float) and abs(x - value) < 1e-6 for x in allowed]
        if allowed and not any(close):
            listed = " or ".join(map(spell, allowed))
            stated[0].refuse(f"{key} = {listed}, but tensor {shown(name)} = {value:g}")


def claim_matrix(folder: Folder, stem: str) -> Claim:
    what = shown(stem + CODES)
    bits = _read_bits(folder, stem)
    axis = _read_number(folder, stem, "axis", (0, 1))
    for flag in ("quant_scale", "quant_zero"):
        if f"{stem}.{flag}" in folder.tensors:
            _read_number(folder, stem, flag, (0,))
    n, k = _read_shape(folder, stem)
    group = _read_number(folder, stem, "group_size", ())
    if group < 1 or n * k % group:
        raise CheckpointError(
            f"{folder.where}: tensor {shown(stem + '.group_size')} = {group}; a divisor of the "
            f"{n} x {k} elements of {what} expected"
        )
    runs = n * k // group
    held = (runs, 1) if axis else (1, runs)
    scales = folder.check(f"{stem}.scale", tuple(SCALES), held, what)
    folder.check(f"{stem}.zero", (scales.kind,), held, what)
    found = HqqMatrix(f"{folder.where}: tensor {what}", (n, k), bits, axis, group)
    _check_codes(folder, stem + CODES, found)
    names = ("scale", "zero", "nbits", "axis", "shape", "group_size", "view_as_float", *UNUSED)
    parts = {name: f"{stem}.{name}" for name in names if f"{stem}.{name}" in folder.tensors}
    kind = found.name_kind(SCALES[scales.kind])
    scheme = MatrixScheme(bits, group)
    return Claim((n, k), kind, {"codes": stem + CODES, **parts}, found.parse, scheme)


def _read_bits(folder: Folder, stem: str) -> int:
    """1.58 bits, three values, are packed as 2."""
    name = f"{stem}.nbits"
    info = folder.tensors.get(name)
    if info is not None and info.kind == "f32":
        value = folder.read_note(name, ("f32",), 0, shown(stem + CODES)).tolist()[0]
        if abs(value - 1.58) < 1e-6:
            return 2
    return _read_number(folder, stem, "nbits", tuple(READ))


def _read_number(folder: Folder, stem: str, key: str, allowed: tuple[int, ...]) -> int:
    """The whole number in a tensor, one of `allowed` where there are any."""
    name = f"{stem}.{key}"
    value = folder.read_note(name, WHOLE, 0, shown(stem + CODES)).tolist()[0]
    if allowed and value not in allowed:
        raise CheckpointError(
            f"{folder.where}: tensor {shown(name)} = {value}; one of "
            f"{', '.join(map(str, allowed))} expected"
        )
    return int(value)


def _read_shape(folder: Folder, stem: str) -> tuple[int, int]:
    name = f"{stem}.shape"
    shape = folder.read_note(name, ("i64", "i32"), 1, shown(stem + CODES)).tolist()
    if len(shape) != 2 or not all(0 < x < 1 << 31 for x in shape):
        raise CheckpointError(
            f"{folder.where}: tensor {shown(name)} = {shape}; [rows, columns] expected"
        )
    return shape[0], shape[1]


def _check_codes(folder: Folder, name: str, found: "HqqMatrix") -> None:
    """W_q may be of floats of other sizes, which are bytes side by side."""
    rows, columns = found.packed
    kinds = ("i32", "f32", "f16", "bf16") if found.bits == 3 else ("u8", "f16", "bf16", "f32")
    info = folder.tensors[name]
    size = BYTES.get(info.kind, 0)
    width = 4 if found.bits == 3 else 1
    stated = size and columns * width // size
    folder.check(name, kinds, (rows, stated), f"{found.bits} bits in groups of {found.group}")


@dataclass(frozen=True, slots=True)
class HqqMatrix:
    """How one matrix is read."""

    where: str
    shape: tuple[int, int]
    bits: int
    axis: int
    group: int

    @property
    def packed(self) -> tuple[int, int]:
        """Rows and columns of W_q, as bytes or words."""
        runs = self.shape[0] * self.shape[1] // self.group
        rows, columns = (runs, self.group) if self.axis else (self.group, runs)
        return -(-rows // LANES[self.bits]), columns

    @property
    def _read(self) -> int:
        """The group that kernels read, 0 where scales do not belong to runs of elements."""
        return find_group(self.group, self.shape[1]) if self.axis else 0

    def name_kind(self, scales: str) -> str:
        layout = WeightLayout(READ[self.bits], self._read, scales=scales, zeros=scales)
        return name_kind(layout) if self._read else "bf16"

    def parse(self, parts: Parts, start: int, stop: int) -> Rows:
        k, group = self.shape[1], self.group
        if not self.axis:
            return self._parse_columns(parts, start, stop)
        first, last = start * k // group, -(-stop * k // group)
        codes = self._read_codes(parts["codes"], first, last).reshape(-1)
        codes = codes[start * k - first * group :][: (stop - start) * k]
        read = self._read or 1
        skipped, shape = (start * k - first * group) // read, (stop - start, k)
        scales, zeros = (
            np.repeat(self._read_floats(parts[x], first, last), group // read)[skipped:]
            for x in ("scale", "zero")
        )
        held = (shape[0], k // read)
        return GroupedWeight(
            shape,
            READ[self.bits],
            read,
            codes.reshape(shape),
            scales[: held[0] * held[1]].reshape(held),
            zeros=zeros[: held[0] * held[1]].reshape(held),
        )

    def _read_floats(self, part: Part, first: int, last: int) -> NDArray[Any]:
        found = part.rows(first, last).reshape(-1)
        check_finite(part, found, self.where)
        return found

    def _read_codes(self, part: Part, first: int, last: int) -> U8:
        """Rows [first, last) of the unpacked codes.  A row of W_q holds rows that are `step` apart,
        so the range is cut where it passes from one place in W_q's elements to the next.
        """
        step, lanes = self.packed[0], LANES[self.bits]
        width = 3 if self.bits == 3 else 8 // lanes
        mask, pieces = (1 << width) - 1, []
        for lane in range(first // step, -(-last // step)):
            low, high = max(first, lane * step), min(last, (lane + 1) * step)
            held = part.rows(low - lane * step, high - lane * step)
            held = held.view(np.uint32 if self.bits == 3 else np.uint8)
            shift = (lanes - 1 - lane) * width
            pieces.append((held >> shift & mask).astype(np.uint8))
        codes: U8 = np.concatenate(pieces)
        self._check_range(part, codes)
        return codes

    def _check_range(self, part: Part, codes: U8) -> None:
        """Codes of 5 and 6 bits have bytes of their own, which could hold more."""
        if codes.size and int(codes.max()) >= 1 << self.bits:
            raise CheckpointError(
                f"{self.where}: {shown(part.name)} holds the code {int(codes.max())}, which is no "
                f"number of {self.bits} bits"
            )

    def _parse_columns(self, parts: Parts, start: int, stop: int) -> GroupedWeight:
        """Axis 0: element i of the flattened matrix has scale i mod R."""
        k, runs = self.shape[1], self.shape[0] * self.shape[1] // self.group
        first, last = start * k // runs, -(-stop * k // runs)
        codes = self._read_codes(parts["codes"], first, last).reshape(-1)
        codes = codes[start * k - first * runs :][: (stop - start) * k]
        at, shape = np.arange(start * k, stop * k) % runs, (stop - start, k)
        scales, zeros = (
            self._read_floats(parts[x], 0, 1)[at].reshape(shape) for x in ("scale", "zero")
        )
        codes = codes.reshape(shape)
        return GroupedWeight(shape, READ[self.bits], 1, codes, scales, zeros=zeros)
