"""bitsandbytes' layouts (Dettmers et al., 2022: LLM.int8(); 2023: QLoRA).  4 bits, of a matrix W
[N, K] whose elements are cut into blocks of `blocksize`, which run on from row to row:

    W  bytes [N K / 2, 1]    two codes a byte, the first in the high half; stored as any type
    W.absmax  f32 [blocks]
    W.quant_map  f32 [16]    the values of the codes, which are NF4's or FP4's
    W.quant_state.bitsandbytes__nf4 (or __fp4)  u8    JSON: shape, blocksize, ...

With double quantisation W.absmax is u8 [blocks], and there are W.nested_quant_map f32 [256] and
W.nested_absmax f32 [blocks / nested_blocksize].  8 bits, of a module M:

    M.weight  i8 [N, K]
    M.SCB  f32 [N]    127 times the scales
    M.weight_format  u8 []    0, row by row

Invariant: w = absmax * value in float32, and a nested absmax is nested_absmax * value +
nested_offset; w = SCB / 127 * code.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight, WeightLayout, name_kind, widen
from flyweight.ops.tables import FP4, NF4
from flyweight.validation.untrusted import parse_object, shown, spell
from flyweight.weights.formats.claims import (
    SCALES,
    Claim,
    Folder,
    MatrixScheme,
    Parts,
    Rows,
    check_finite,
    find_group,
)
from flyweight.wire import F32, U8

STATE, ABSMAX, NESTED, BY_ROW = (
    ".quant_state.bitsandbytes__",
    ".absmax",
    ".nested_absmax",
    ".SCB",
)
METHODS = ("load_in_4bit", "load_in_8bit")
TABLES = {"nf4": NF4, "fp4": FP4}
STORAGE = {"u8": 1, "i8": 1, "f16": 2, "bf16": 2, "f32": 4}  # bytes of an element of W
MOST_STATE = 4096
MOST_OFFSET = 1e38  # float32 holds it
CLOSE = 1e-6  # of a file's table to ours; older versions wrote FP4's last digit differently


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder in these layouts, by the name of its weight."""
    four, eight = (folder.choose(key, (True, False), False) for key in METHODS)
    if four and eight:
        folder.refuse(f"{METHODS[0]} = true contradicts {METHODS[1]} = true")
    found = {
        stem: claim_four_bits(folder, stem, table)
        for table in TABLES
        for stem in folder.list_stems(STATE + table)
    }
    for name in folder.list_stems(ABSMAX):
        if name not in found:
            folder.check(name + STATE + "nf4", ("u8",), (None,), shown(name))
    whole = {s for s in folder.list_stems(".weight") if folder.tensors[f"{s}.weight"].kind == "i8"}
    for stem in sorted(whole.difference(name.removesuffix(".weight") for name in found)):
        found[f"{stem}.weight"] = claim_eight_bits(folder, stem)
    for stem in folder.list_stems(BY_ROW):
        if f"{stem}.weight" not in found:
            claim_eight_bits(folder, stem)  # which raises
    return found


def claim_four_bits(folder: Folder, name: str, table: str) -> Claim:
    _check_method(folder, METHODS[0], name)
    what = shown(name)
    stated = folder.choose("bnb_4bit_quant_type", tuple(TABLES), table)
    if stated != table:
        folder.refuse(f"bnb_4bit_quant_type = {stated}, but tensor {what} is {table}")
    state = read_state(folder, name, table)
    n, k = state.shape
    stored = folder.check(name, tuple(STORAGE), (None, 1), "a bitsandbytes matrix of 4 bits")
    size = STORAGE[stored.kind]
    if stored.shape[0] != -(-n * k // (2 * size)):
        raise CheckpointError(
            f"{folder.where}: tensor {what} holds {stored.shape[0] * 2 * size} codes, but its "
            f"quant_state has shape = [{n}, {k}]"
        )
    blocks = -(-n * k // state.block)
    parts = {"codes": name, "absmax": name + ABSMAX, "map": f"{name}.quant_map"}
    folder.check(parts["map"], ("f32",), (16,), what)
    parts["state"] = name + STATE + table
    if state.nested_block:
        folder.check(parts["absmax"], ("u8",), (blocks,), what)
        parts["nested_map"], parts["nested"] = f"{name}.nested_quant_map", name + NESTED
        folder.check(parts["nested_map"], ("f32",), (256,), what)
        folder.check(parts["nested"], ("f32",), (-(-blocks // state.nested_block),), what)
    else:
        folder.check(parts["absmax"], tuple(SCALES), (blocks,), what)
    found = FourBitMatrix(f"{folder.where}: tensor {what}", state, table, size)
    return Claim((n, k), found.name_kind(), parts, found.parse, MatrixScheme(4, state.block))


def _check_method(folder: Folder, key: str, name: str) -> None:
    if folder.config.get(key) is False:
        folder.refuse(f"{key} = false, but tensor {shown(name)} is in that format")
    other = next(one for one in METHODS if one != key)
    if folder.config.get(other):
        folder.refuse(f"{other} = true, but tensor {shown(name)} is in the format of {key}")


@dataclass(frozen=True, slots=True)
class QuantState:
    """What quant_state says.  `nested_block` is 0 where absmax is not quantised."""

    shape: tuple[int, int]
    block: int
    nested_block: int
    offset: float


def read_state(folder: Folder, name: str, table: str) -> QuantState:
    """The JSON of a matrix's quant_state.  Raises `CheckpointError`."""
    tensor = name + STATE + table
    text = folder.read_note(tensor, ("u8",), 1, shown(name), MOST_STATE).tobytes()
    where = f"{folder.where}: tensor {shown(tensor)}"
    found = parse_object(text, where)
    if found.get("quant_type") != table:
        raise CheckpointError(
            f"{where}: quant_type = {spell(found.get('quant_type'))}; {table} expected"
        )
    shape = found.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(_is_size(x) for x in shape):
        raise CheckpointError(f"{where}: shape = {spell(shape)}; [rows, columns] expected")
    nested = "nested_blocksize" in found or name + NESTED in folder.tensors
    offset = found.get("nested_offset", 0.0)
    number = isinstance(offset, int | float) and not isinstance(offset, bool)
    if not number or not abs(offset) < MOST_OFFSET:
        raise CheckpointError(f"{where}: nested_offset = {spell(offset)}; a number expected")
    return QuantState(
        (shape[0], shape[1]),
        _read_block(found, "blocksize", where),
        _read_block(found, "nested_blocksize", where) if nested else 0,
        float(offset),
    )


def _read_block(found: dict[str, Any], key: str, where: str) -> int:
    size = found.get(key)
    if not isinstance(size, int) or not _is_size(size) or size > 1 << 16 or size & (size - 1):
        raise CheckpointError(f"{where}: {key} = {spell(size)}; a power of 2 expected")
    return size


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


@dataclass(frozen=True, slots=True)
class FourBitMatrix:
    """How one matrix of 4 bits is read.  `size` is of an element of what holds the codes."""

    where: str
    state: QuantState
    table: str
    size: int

    def name_kind(self) -> str:
        group = find_group(self.state.block, self.state.shape[1])
        layout = WeightLayout(4, group, scales="float32", values=TABLES[self.table])
        return name_kind(layout) if group else "bf16"

    def parse(self, parts: Parts, start: int, stop: int) -> Rows:
        k, block = self.state.shape[1], self.state.block
        values = parts["map"].all()
        if not np.allclose(values, TABLES[self.table], rtol=0, atol=CLOSE):
            raise CheckpointError(
                f"{self.where}: {shown(parts['map'].name)} is not the table of {self.table}"
            )
        codes = self._read_codes(parts, start * k, stop * k)
        first = start * k // block
        absmax = self._read_absmax(parts, first, -(-stop * k // block))
        group = find_group(block, k) or 1
        skipped = (start * k - first * block) // group
        scales = np.repeat(absmax, block // group)[skipped:][: (stop - start) * k // group]
        shape, table = (stop - start, k), TABLES[self.table]
        return GroupedWeight(
            shape, 4, group, codes.reshape(shape), scales.reshape(shape[0], -1), values=table
        )

    def _read_codes(self, parts: Parts, first: int, last: int) -> U8:
        """Codes of elements [first, last)."""
        per = 2 * self.size
        stored = parts["codes"].rows(first // per, -(-last // per)).reshape(-1).view(np.uint8)
        pairs = stored.astype(np.uint16)  # both codes of a byte at once
        high = pairs >> np.uint16(4)
        pairs &= np.uint16(15)
        pairs <<= np.uint16(8)
        pairs |= high
        return pairs.view(np.uint8)[first % per :][: last - first]

    def _read_absmax(self, parts: Parts, first: int, last: int) -> F32:
        """The scales of blocks [first, last)."""
        part, wide = parts["absmax"], self.state.nested_block
        absmax = part.rows(first, last)
        if not wide:
            check_finite(part, absmax, self.where)
            return widen(absmax)
        outer, table = parts["nested"].rows(first // wide, -(-last // wide)), parts["nested_map"]
        values = table.all()
        check_finite(parts["nested"], outer, self.where)
        check_finite(table, values, self.where)
        each = outer[np.arange(first, last) // wide - first // wide]
        with np.errstate(over="ignore"):
            found: F32 = values[absmax] * each + np.float32(self.state.offset)
        check_finite(parts["nested"], found, self.where)
        return found


def claim_eight_bits(folder: Folder, stem: str) -> Claim:
    name = f"{stem}.weight"
    _check_method(folder, METHODS[1], name)
    n, k = folder.check_codes(name, ("i8",), 2, "a bitsandbytes matrix of 8 bits").shape
    parts = {"codes": name, "scales": stem + BY_ROW}
    folder.check(parts["scales"], ("f32",), (n,), shown(name))
    form = f"{stem}.weight_format"
    if form in folder.tensors:
        parts["format"] = form
        order = folder.read_note(form, ("u8",), len(folder.tensors[form].shape), shown(name))
        if order.tolist() != [0]:
            raise CheckpointError(
                f"{folder.where}: tensor {shown(form)} = {order.tolist()}, an order of a GPU; "
                "0, row by row, expected: save the model again with a newer bitsandbytes"
            )
    found = EightBitMatrix(f"{folder.where}: tensor {shown(name)}")
    layout = WeightLayout(8, 32, codes="int8", scales="", row_scaled=True)
    kind = "bf16" if k % 32 else name_kind(layout)
    return Claim((n, k), kind, parts, found.parse, MatrixScheme(8, -1))


@dataclass(frozen=True, slots=True)
class EightBitMatrix:
    """How one matrix of 8 bits is read."""

    where: str

    def parse(self, parts: Parts, start: int, stop: int) -> GroupedWeight:
        codes, scales = parts["codes"].rows(start, stop), parts["scales"].rows(start, stop)
        check_finite(parts["scales"], scales, self.where)
        group = codes.shape[1] if codes.shape[1] % 32 else 32
        rows: F32 = scales * np.float32(1 / 127)
        return GroupedWeight(codes.shape, 8, group, codes, None, row_scales=rows)
