"""torchao's tensors as torchao.prototype.safetensors flattens them.  The header's text has JSON for
each tensor: its class, its numbers, and the names of the tensors it is made of.  Of a matrix
M.weight [N, K] in groups of g along K:

    M._weight_qdata    i8 [N, K]; Float8Tensor: e4m3 [N, K]; Int4Tensor: bytes [N, K/2] of two
        codes from -8 to 7, the first in the low half
    M._weight_scale    floats [N, K/g]; Int4Tensor: [K/g, N]
    M._weight_zero_point    i8 [N, K/g]; Int4Tensor: floats [K/g, N]

Invariant: w = scale * (code - zero_point), but of Int4Tensor scale * code + zero_point.  Classes
that are stored as the kernel of one processor wants them are refused.  Scales of activations are
not used: each row finds its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight, WeightLayout, name_kind, widen
from flyweight.validation.untrusted import parse_object, shown, spell
from flyweight.weights.formats import fp8
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
    repeat_groups,
)
from flyweight.wire import F32, U8

PLAIN = "Tensor"
WAY_OUT = {
    "Int4TilePackedTo4dTensor": 'save it with int4_packing_format="plain", or dequantised',
    "Int4PlainInt32Tensor": 'save it with int4_packing_format="plain", or dequantised',
}
ELSE = "save the model dequantised, or quantised with Int8WeightOnlyConfig or IntxWeightOnlyConfig"


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder that its headers' text describes, by its name."""
    found = {}
    for name, text in folder.metadata.items():
        if "." not in name:
            continue
        entry = parse_object(text.encode(), f"{folder.where}: metadata of tensor {shown(name)}")
        if entry.get("_type") != PLAIN:
            one = TensorEntry.read(folder, name, entry)
            found[name] = READERS[one.kind](folder, one)
            _check_stated(folder, one, found[name].scheme.bits)
    return found


def _check_stated(folder: Folder, entry: "TensorEntry", bits: int) -> None:
    """Where the config says "int4", "Int8WeightOnlyConfig" or the like of all matrices, this one
    must be so.
    """
    given = folder.config.get("quant_type")
    if not isinstance(given, str | Mapping | None):
        folder.refuse(f"quant_type = {spell(given)}; a name or an object expected")
    default = given.get("default") if isinstance(given, Mapping) else given
    data = default.get("_data") if isinstance(default, Mapping) else None
    name = default.get("_type") if isinstance(default, Mapping) else default
    target = data.get("weight_dtype") if isinstance(data, Mapping) else None
    target = target.get("_data") if isinstance(target, Mapping) else target
    said = str(target or name)
    words = [] if "intx" in said.lower() else re.findall(r"(int|float)(\d)", said.lower())
    held = f"{'float' if entry.kind == 'Float8Tensor' else 'int'}{bits}"
    if words and "".join(words[-1]) != held:  # the last: activations come first
        folder.refuse(f"quant_type = {shown(said)}, but tensor {shown(entry.name)} is {held}")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What the header's text says of one tensor."""

    name: str
    kind: str
    data: Mapping[str, Any]
    parts: Mapping[str, str]

    @classmethod
    def read(cls, folder: Folder, name: str, entry: Mapping[str, Any]) -> "TensorEntry":
        where = f"{folder.where}: metadata of tensor {shown(name)}"
        kind, data, names = (entry.get(k) for k in ("_type", "_data", "_tensor_data_names"))
        if not isinstance(kind, str) or kind not in READERS:
            why = WAY_OUT.get(str(kind), ELSE)
            raise CheckpointError(
                f"{where}: _type = {shown(kind)}; readable: {', '.join(READERS)}; {why}"
            )
        if not isinstance(data, dict) or not isinstance(names, list):
            raise CheckpointError(f"{where}: _data and _tensor_data_names expected")
        if "act_pre_scale" in names:
            raise CheckpointError(
                f"{where} has act_pre_scale, by which inputs are multiplied first; {ELSE}"
            )
        stem, _, own = name.rpartition(".")
        parts = {str(part): f"{stem}._{own}_{part}" for part in names}
        for part in parts.values():
            if part not in folder.tensors:
                raise CheckpointError(f"{where}: tensor {shown(part)} is missing")
        return cls(name, kind, data, parts)

    def find_block(self, folder: Folder) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        block = self.data.get("block_size")
        if (
            not isinstance(block, list)
            or len(block) != 2
            or not all(isinstance(x, int) and x > 0 for x in block)
        ):
            raise CheckpointError(
                f"{folder.where}: metadata of tensor {shown(self.name)}: block_size = "
                f"{shown(block)}; [rows, columns] expected"
            )
        return block[0], block[1]

    def part(self, folder: Folder, role: str) -> str:
        """A tensor's name by role."""
        if role not in self.parts:
            raise CheckpointError(
                f"{folder.where}: metadata of tensor {shown(self.name)} lists no {role}"
            )
        return self.parts[role]


def _claim_int8(folder: Folder, entry: TensorEntry) -> Claim:
    """Int8Tensor: scales of rows, of groups, or one; zero points are all 0."""
    n, k, rows, group = _check_codes(folder, entry, "i8")
    scales = folder.check(
        entry.part(folder, "scale"), tuple(SCALES), (n // rows, k // group), shown(entry.name)
    )
    if "zero_point" in entry.parts:
        folder.check(entry.parts["zero_point"], ("i8",), scales.shape, shown(entry.name))
    by_row = group == k
    found = Int8Matrix(f"{folder.where}: tensor {shown(entry.name)}", k, rows, group, by_row)
    kind, scheme = found.name_kind(SCALES[scales.kind]), MatrixScheme(8, -1 if by_row else group)
    return Claim((n, k), kind, entry.parts, found.parse, scheme)


def _check_codes(folder: Folder, entry: TensorEntry, kind: str) -> tuple[int, int, int, int]:
    """N, K, and the rows and columns of a block."""
    codes = folder.check_codes(entry.part(folder, "qdata"), (kind,), 2, shown(entry.name))
    (n, k), (rows, group) = codes.shape, entry.find_block(folder)
    if n % rows or k % group or rows not in (1, n):
        raise CheckpointError(
            f"{folder.where}: metadata of tensor {shown(entry.name)}: block_size = "
            f"{[rows, group]} does not divide [{n}, {k}] by rows or columns"
        )
    return n, k, rows, group


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """How a matrix of 8 bits without zero points is read."""

    where: str
    k: int
    rows: int
    group: int
    by_row: bool

    def name_kind(self, scales: str) -> str:
        read = 32 if self.by_row else find_group(self.group, self.k)
        held = "" if self.by_row else scales
        layout = WeightLayout(8, read, codes="int8", scales=held, row_scaled=self.by_row)
        return name_kind(layout) if read and self.k % 32 == 0 else "bf16"

    def parse(self, parts: Parts, start: int, stop: int) -> Rows:
        codes = parts["qdata"].rows(start, stop)
        if "zero_point" in parts:
            self._check_zero(parts["zero_point"])
        at = np.arange(start, stop) // self.rows
        scales = parts["scale"].all()[at]
        check_finite(parts["scale"], scales, self.where)
        if self.by_row:
            group = self.k if self.k % 32 else 32
            rows = widen(scales)[:, 0]
            return GroupedWeight(codes.shape, 8, group, codes, None, row_scales=rows)
        read = find_group(self.group, self.k) or self.group
        held = repeat_groups(scales, self.group // read)
        return GroupedWeight(codes.shape, 8, read, codes, held)

    def _check_zero(self, part: Part) -> None:
        points = part.all()
        if points.any():
            raise CheckpointError(
                f"{self.where}: {shown(part.name)} holds the zero point "
                f"{int(points[points != 0][0])}; 0 expected of Int8Tensor"
            )


def _claim_intx(folder: Folder, entry: TensorEntry) -> Claim:
    """IntxUnpackedToInt8Tensor: codes of 1 to 8 bits in bytes, each group with its zero point."""
    n, k, rows, group = _check_codes(folder, entry, "i8")
    bits = _find_bits(folder, entry)
    held = (n // rows, k // group)
    scales = folder.check(entry.part(folder, "scale"), tuple(SCALES), held, shown(entry.name))
    folder.check(entry.part(folder, "zero_point"), ("i8",), held, shown(entry.name))
    found = IntxMatrix(f"{folder.where}: tensor {shown(entry.name)}", k, rows, group, bits)
    kind, scheme = found.name_kind(SCALES[scales.kind]), MatrixScheme(bits, group)
    return Claim((n, k), kind, entry.parts, found.parse, scheme)


def _find_bits(folder: Folder, entry: TensorEntry) -> int:
    target = entry.data.get("target_dtype")
    name = target.get("_data") if isinstance(target, dict) else target
    allowed = {f"int{bits}": bits for bits in range(1, 9)}
    if not isinstance(name, str) or name not in allowed:
        raise CheckpointError(
            f"{folder.where}: metadata of tensor {shown(entry.name)}: target_dtype = "
            f"{shown(name)}; one of {', '.join(allowed)} expected"
        )
    return allowed[name]


@dataclass(frozen=True, slots=True)
class IntxMatrix:
    """How a matrix with zero points is read: codes and zero points are moved up, to start at 0."""

    where: str
    k: int
    rows: int
    group: int
    bits: int

    @property
    def _bits(self) -> int:
        """Those of the kernel that reads such codes."""
        return next(b for b in (2, 3, 4, 8) if b >= self.bits)

    def name_kind(self, scales: str) -> str:
        read = find_group(self.group, self.k)
        layout = WeightLayout(self._bits, read, scales=scales, zeros="uint8")
        return name_kind(layout) if read else "bf16"

    def parse(self, parts: Parts, start: int, stop: int) -> Rows:
        codes = self._lift(parts["qdata"], parts["qdata"].rows(start, stop))
        at = np.arange(start, stop) // self.rows
        scales = parts["scale"].all()[at]
        check_finite(parts["scale"], scales, self.where)
        points = self._lift(parts["zero_point"], parts["zero_point"].all()[at])
        read = find_group(self.group, self.k) or self.group
        times = self.group // read
        zeros, scales = repeat_groups(points, times), repeat_groups(scales, times)
        return GroupedWeight(codes.shape, self._bits, read, codes, scales, zeros=zeros)

    def _lift(self, part: Part, numbers: NDArray[np.int8]) -> U8:
        least = -(1 << (self.bits - 1))
        if numbers.min() < least or numbers.max() >= -least:
            bad = numbers[(numbers < least) | (numbers >= -least)][0]
            raise CheckpointError(
                f"{self.where}: {shown(part.name)} holds {int(bad)}, which is no int{self.bits}"
            )
        found: U8 = (numbers.astype(np.int16) - least).astype(np.uint8)
        return found


def _claim_int4(folder: Folder, entry: TensorEntry) -> Claim:
    """Int4Tensor in the plain packing."""
    what = shown(entry.name)
    codes = folder.check_codes(entry.part(folder, "qdata"), ("i8", "u8"), 2, what)
    (n, half), (rows, group) = codes.shape, entry.find_block(folder)
    k = 2 * half
    if rows != 1 or k % group:
        raise CheckpointError(
            f"{folder.where}: metadata of tensor {what}: block_size = {[rows, group]}; "
            f"[1, a divisor of {k}] expected"
        )
    held = (k // group, n)
    scales = folder.check(entry.part(folder, "scale"), tuple(SCALES), held, what)
    folder.check(entry.part(folder, "zero_point"), (scales.kind,), held, what)
    read = find_group(group, k)
    layout = WeightLayout(4, read, scales="float32", mins="float32")
    found = Int4Matrix(f"{folder.where}: tensor {what}", k, group)
    kind = name_kind(layout) if read else "bf16"
    return Claim((n, k), kind, entry.parts, found.parse, MatrixScheme(4, group))


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """How an Int4Tensor is read: scale * (code + 8) - (8 scale - zero_point)."""

    where: str
    k: int
    group: int

    def parse(self, parts: Parts, start: int, stop: int) -> Rows:
        held = parts["qdata"].rows(start, stop).view(np.uint8)
        codes = np.stack((held & 15, held >> 4), axis=-1).reshape(stop - start, self.k)
        codes ^= np.uint8(8)  # code + 8, of two's complement
        scales, points = (self._read_floats(parts[x], start, stop) for x in ("scale", "zero_point"))
        with np.errstate(over="ignore"):
            low = np.float32(8) * scales - points
        check_finite(parts["zero_point"], low, self.where)
        read = find_group(self.group, self.k) or self.group
        scales, low = (repeat_groups(x, self.group // read) for x in (scales, low))
        return GroupedWeight(codes.shape, 4, read, codes, scales, mins=low)

    def _read_floats(self, part: Part, start: int, stop: int) -> F32:
        found = np.ascontiguousarray(part.columns(start, stop).T)
        check_finite(part, found, self.where)
        return widen(found)


def _claim_float8(folder: Folder, entry: TensorEntry) -> Claim:
    """Float8Tensor."""
    codes = folder.check_codes(entry.part(folder, "qdata"), tuple(fp8.TABLES), 2, shown(entry.name))
    block = entry.find_block(folder)
    scales = folder.check(entry.part(folder, "scale"), ("f32",), (None, None), shown(entry.name))
    n, k = codes.shape
    size = (min(block[0], n), min(block[1], k))
    folder.check(scales.name, ("f32",), (-(-n // size[0]), -(-k // size[1])), shown(entry.name))
    where = f"{folder.where}: tensor {shown(entry.name)}"
    found = fp8.Float8Matrix(where, (n, k), codes.kind, size)
    parts = {**entry.parts, "codes": entry.parts["qdata"], "scales": scales.name}
    scheme = MatrixScheme(8, -1 if size[1] == k else size[1])
    return Claim((n, k), found.name_kind(scales.kind), parts, found.parse, scheme)


READERS = {
    "Int8Tensor": _claim_int8,
    "IntxUnpackedToInt8Tensor": _claim_intx,
    "Int4Tensor": _claim_int4,
    "Float8Tensor": _claim_float8,
}
