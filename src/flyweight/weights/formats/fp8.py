"""Matrices of 8-bit floats (Micikevicius et al., 2022) as DeepSeek, Qwen, vLLM's AutoFP8,
transformers and FBGEMM publish them.  Of a matrix M [N, K], or [E, N, K] of experts:

    M.weight  e4m3 or e5m2
    M.weight_scale_inv, or M.weight_scale    a number, one a row [N] or [N, 1], or one a block
        [N / b, K / c] (rounded up) where the config has `weight_block_size` = [b, c]
    M.input_scale, or M.activation_scale    a number, of static activations

Invariant: w = scale * value; "inv" is said of the same scale.  Scales of activations, of K and of V
are checked and not used: activations are not rounded to 8-bit floats here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight, WeightLayout, name_kind, widen
from flyweight.ops.tables import E4M3, E5M2
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
    raise_powers,
    read_positive,
)
from flyweight.weights.tensorinfo import TensorInfo
from flyweight.wire import U8

TABLES = {"e4m3": E4M3, "e5m2": E5M2}
NUMBERS = {"e4m3": 0x7F, "e5m2": 0x7C}  # codes from here up, except for the sign, are no numbers
FORMATS = {  # what a config calls them; without a word the tensors say
    "e4m3": "e4m3", "e5m2": "e5m2", "e4m3fn": "e4m3", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "": "",
}  # fmt: skip
STATED = ("_scale_inv", "_scale")  # after the name of M.weight
INPUT = "input"  # begins the roles of scales of activations
INPUTS = (".input_scale", ".activation_scale")
UNUSED = (".input_scale_ub", ".output_scale", ".k_scale", ".v_scale")  # of M
CACHE = {"k_proj": ("k_scale", "kv_scale"), "v_proj": ("v_scale",)}  # of the module above M
POWERS = ("e8m0", "u8")  # scales that are exponents, 127 for 1
KINDS = (*SCALES, *POWERS)


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder of 8-bit floats, by its name."""
    static = folder.choose("activation_scheme", ("dynamic", "static"), "dynamic") == "static"
    block = _read_block(folder)
    stated = folder.choose("fmt", tuple(FORMATS), "")
    found = {}
    for name, info in folder.tensors.items():
        if info.kind not in TABLES or len(info.shape) < 2:
            continue
        if FORMATS[stated] not in ("", info.kind):
            folder.refuse(f"fmt = {stated}, but tensor {shown(name)} is {info.kind}")
        found[name] = claim_matrix(folder, info, block, static)
    return found


def _read_block(folder: Folder) -> tuple[int, int] | None:
    block = folder.config.get("weight_block_size")
    if block is None:
        return None
    whole = isinstance(block, list) and len(block) == 2
    if not whole or not all(isinstance(x, int) and x > 0 for x in block):
        folder.refuse(f"weight_block_size = {spell(block)}; [rows, columns] expected")
    return block[0], block[1]


def claim_matrix(
    folder: Folder, info: TensorInfo, block: tuple[int, int] | None, static: bool
) -> Claim:
    name, what = info.name, shown(info.name)
    folder.check_codes(name, (info.kind,), len(info.shape), "a matrix of 8-bit floats")
    scale = next((name + s for s in STATED if name + s in folder.tensors), name + STATED[0])
    found = folder.tensors.get(scale)
    shape = None if found is None else found.shape
    fitting = list_shapes(info.shape, block)
    if found is None or found.kind not in KINDS or shape not in fitting:
        stated = "missing" if found is None else f"{found.kind} {list(found.shape)}"
        raise CheckpointError(
            f"{folder.where}: tensor {shown(scale)} is {stated}; {what} {list(info.shape)} needs "
            f"one of {', '.join(KINDS)}, {' or '.join(str(list(s)) for s in fitting)}"
        )
    parts = {"codes": name, "scales": scale}
    parts |= _find_others(folder, name, static)
    form = Float8Matrix(
        f"{folder.where}: tensor {what}",
        info.shape,
        info.kind,
        _find_size(info.shape, shape, block),
    )
    scheme = MatrixScheme(8, block[1] if block else -1)
    return Claim(info.shape, form.name_kind(found.kind), parts, form.parse, scheme)


def list_shapes(shape: Sequence[int], block: tuple[int, int] | None) -> list[tuple[int, ...]]:
    """The shapes that the scales of a matrix may have."""
    *lead, n, k = shape
    if block is not None:
        return [(*lead, -(-n // block[0]), -(-k // block[1]))]
    return [tuple(s) for s in ([*lead], [*lead, 1], [*lead, 1, 1], [*lead, n], [*lead, n, 1])]


def _find_size(
    shape: Sequence[int], scales: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    *lead, n, k = shape
    if block is not None:
        return block
    return (1, k) if prod(scales) == prod(lead) * n and n > 1 else (n, k)


def _find_others(folder: Folder, name: str, static: bool) -> dict[str, str]:
    """The scales that belong to a matrix without being read, checked, by role."""
    stem, held = name.removesuffix(".weight"), folder.tensors
    inputs = [x for x in (*(stem + s for s in INPUTS), f"{name}_activation_scale") if x in held]
    if static and not inputs:
        folder.check(stem + INPUTS[0], tuple(SCALES), (), f"activation_scheme = static of {name}")
    above, _, module = stem.rpartition(".")
    cache = [f"{above}.{own}" for own in CACHE.get(module, ())]
    rest = [x for x in (*(stem + s for s in UNUSED), *cache) if x in held]
    for one in (*inputs, *rest):
        if held[one].kind not in SCALES:
            folder.check(one, tuple(SCALES), (None,) * len(held[one].shape), shown(name))
    named = {f"{INPUT} {i}": one for i, one in enumerate(inputs)}
    return named | {f"other {i}": one for i, one in enumerate(rest)}


@dataclass(frozen=True, slots=True)
class Float8Matrix:
    """How one matrix is read: `size` rows and columns share a scale.  Leading axes are rows."""

    where: str
    shape: tuple[int, ...]
    table: str
    size: tuple[int, int]

    @property
    def _by_row(self) -> bool:
        return self.size[1] >= self.shape[-1]

    @property
    def _group(self) -> int:
        return 32 if self._by_row else find_group(self.size[1], self.shape[-1])

    def name_kind(self, scales: str) -> str:
        group, held = self._group, "" if self._by_row else SCALES.get(scales, "float32")
        if not group or self.shape[-1] % 32:
            return "bf16"
        layout = WeightLayout(
            8, group, scales=held, values=TABLES[self.table], row_scaled=self._by_row
        )
        return name_kind(layout)

    def parse(self, parts: Parts, start: int, stop: int) -> Rows:
        for role in [role for role in parts if role.startswith(INPUT)]:
            read_positive(parts[role], self.where)
        axes = len(self.shape) - 1
        codes = parts["codes"].rows(start, stop, axes)
        check_codes(self.where, self.table, codes)
        scales = self._read_scales(parts["scales"], start, stop)
        k, values = self.shape[-1], TABLES[self.table]
        if self._by_row:
            rows, group = widen(scales[:, 0]), k if k % 32 else 32
            return GroupedWeight(codes.shape, 8, group, codes, None, values=values, row_scales=rows)
        group = self._group or 1
        each = np.ascontiguousarray(scales[:, np.arange(0, k, group) // self.size[1]])
        return GroupedWeight(codes.shape, 8, group, codes, each, values=values)

    def _read_scales(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Those of rows [start, stop), one for every `size` columns."""
        n, high = self.shape[-2], self.size[0]
        columns = -(-self.shape[-1] // self.size[1])
        found: NDArray[Any] = part.all().reshape(-1, columns)
        if found.dtype == np.uint8:
            found = raise_powers(part, found, self.where)
        check_finite(part, found, self.where)
        rows = np.arange(start, stop)
        return np.take(found, rows // n * -(-n // high) + rows % n // high, axis=0)


def check_codes(where: str, table: str, codes: U8) -> None:
    """Every code must represent a number."""
    if codes.size and int((codes | 0x80).max()) >= NUMBERS[table] | 0x80:
        row, column = np.argwhere((codes & 0x7F) >= NUMBERS[table])[0]
        raise CheckpointError(
            f"{where}: code {int(codes[row, column]):#04x} in column {column} is no number of "
            f"{table}"
        )
