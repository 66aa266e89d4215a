"""How the codes of each kind of weight are stored on the device and read by kernels.

Invariant: every kind that `ops.grouped.name_kind` names has a form; a form holds no numbers of a
weight.  Knows neither tensors nor kernels.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from flyweight.ops.grouped import LAYOUTS, TABLES, find_base
from flyweight.ops.tables import E2M1

UNIT = 128  # codes along K that rows are padded to
DENSE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
READS = {"e4m3": "e4m3", "e5m2": "e5m2"}  # floats of 8 bits are read by shifting their bits
TYPE_BYTES = {"uint8": 1, "int8": 1, "float16": 2, "uint16": 2, "float32": 4, "bfloat16": 2}
VALUES = {name: values for values, name in TABLES.items()}


@dataclass(frozen=True, slots=True)
class Form:
    """`packed`: two codes a byte.  `read`: how a code becomes a number, "whole", "table", "e2m1",
    "e4m3" or "e5m2".  `group` 0: no scales a group.  `lows`: "" or what there is with scales,
    "zeros" (whole), "float_zeros" or "mins".  `scale_type`, `low_type`, `super_type`: types of
    elements, "" for none.

    Numbers of less than 4 bytes a row and unit cannot be copied ahead in shared memory.  So whole
    zero points may have the type of scales; a scale a unit is next to its low number (`paired`;
    the zero point of all, where there is no other), a super-scale next to its super-minimum or 0.
    """

    packed: bool
    signed: bool
    read: str
    zero: int
    group: int
    scale_type: str
    lows: str
    low_type: str
    super_group: int
    super_type: str
    values: tuple[float, ...]
    row_scaled: bool
    ordered: bool
    static: bool

    @property
    def paired(self) -> bool:
        """Scales and low numbers are in pairs, in `scales`."""
        return self.group == UNIT and TYPE_BYTES[self.scale_type] < 4


@cache
def find_form(kind: str) -> Form | None:
    """The form of a grouped kind; None for a dense one."""
    if kind in DENSE_BYTES:
        return None
    base = find_base(kind)
    more = "_rows" in kind, "_order" in kind, kind.endswith("_static")
    if base not in LAYOUTS:
        return _find_wide(base, kind, more)
    held = LAYOUTS[base]
    exponents = held.scales == "uint8" and not held.super_group
    return Form(
        held.bits <= 4, held.codes == "int8", _find_read(held.values), held.zero, held.group,
        "bfloat16" if exponents else held.scales, "mins" if held.mins else "", held.mins,
        held.super_group, held.super_scales, held.values, *more,
    )  # fmt: skip


def _find_wide(base: str, kind: str, more: tuple[bool, bool, bool]) -> Form:
    """The form of a kind whose name says it: BASE[_gGROUP][_SCALES] and suffixes."""
    grouped = re.search(r"_g(\d+)", kind)
    group = int(grouped[1]) if grouped else 0
    floats = "bfloat16" if "_bf16" in kind else "float32" if "_f32" in kind else "float16"
    values = VALUES.get(base, ())
    read = READS.get(base) or _find_read(values)
    eight = base[1:] == "8" or base in READS
    lows, low_type = "", ""
    if base[0] == "u":
        lows = "mins" if "_min" in kind else "float_zeros" if "_zf" in kind else "zeros"
        low_type = "uint8" if lows == "zeros" and group <= 32 else floats
    scale_type = floats if group else ""
    zero = 8 if base == "s4" else 0
    form = Form(
        not eight, base == "s8", read, zero, group, scale_type, lows, low_type, 0, "", values, *more
    )
    if form.paired and not lows:
        form = replace(form, zero=0, lows="zeros", low_type=floats)
    return form


def _find_read(values: tuple[float, ...]) -> str:
    return "e2m1" if values == E2M1 else "table" if values else "whole"


def count_bytes(shape: tuple[int, int], kind: str) -> int:
    """Bytes of a weight of this shape and kind, without bias."""
    form, (n, k) = find_form(kind), shape
    if form is None:
        return n * k * DENSE_BYTES[kind]
    wide = pad(k)
    total = n * wide // (2 if form.packed else 1)
    if form.group:
        each = TYPE_BYTES[form.scale_type] + TYPE_BYTES.get(form.low_type, 0)
        total += n * (wide // form.group) * each
    if form.super_group:
        total += n * (wide // form.super_group) * TYPE_BYTES[form.super_type] * 2
    return total + 4 * n * form.row_scaled + 4 * k * form.ordered


def pad(k: int) -> int:
    """Codes of a row as it is stored."""
    return -(-k // UNIT) * UNIT
