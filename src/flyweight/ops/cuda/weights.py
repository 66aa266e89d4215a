"""Weights on the device: dense matrices, and codes with their scales.

Invariant: a weight holds the numbers of its parts, unrounded, in the form of `forms.py`; `nbytes`
counts all of them.  Codes are in words, in the order that kernels/gemm_open.py says, those of at
most 4 bits two a byte.  Numbers a group are in the order [unit of 128, N, groups of the unit],
those of super-groups in pairs (forms.py); their tensors are shaped [.., N].  Not known here:
products.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flyweight.errors import CheckpointError
from flyweight.ops.base import Part
from flyweight.ops.cuda.forms import UNIT, Form, count_bytes, find_form, pad
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.ops.parts import check_columns, find_part_kind

DENSE_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class CudaWeight:
    """A packed matrix [N,K].  `data`: numbers [N,K], or codes [N, words]; `lows`: minima or zero
    points a group.  `cache` is for what products derive from it.
    """

    shape: tuple[int, int]
    kind: str
    data: Tensor
    bias: Tensor | None = None
    form: Form | None = None
    scales: Tensor | None = None
    lows: Tensor | None = None
    supers: Tensor | None = None
    super_lows: Tensor | None = None
    row_scales: Tensor | None = None
    columns: Tensor | None = None
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        held = (
            self.data, self.bias, self.scales, self.lows, self.supers, self.super_lows,
            self.row_scales, self.columns,
        )  # fmt: skip
        return sum(x.nbytes for x in held if x is not None)


def pack(
    shape: tuple[int, int], parts: Iterable[Part], bias: Any, device: torch.device
) -> CudaWeight:
    """Row ranges, in order, into one weight; parts are taken one at a time."""
    weight: CudaWeight | None = None
    row, first = 0, None
    for part in parts:
        if isinstance(part, BlockRows):
            raise CheckpointError(f"blocks of {part.kind} are not read on a GPU; parse them first")
        kind, rows = find_part_kind(part), part.shape[0]
        if weight is None:
            check_columns(shape, kind)
            weight, first = allocate(shape, kind, device, upload_bias(shape, bias, device)), part
        if kind != weight.kind:
            raise CheckpointError(
                f"one weight of kinds {weight.kind}, {kind}; its parts must be of one kind"
            )
        if part.shape[1] != shape[1] or row + rows > shape[0]:
            raise CheckpointError(
                f"weight part {part.shape} at row {row} where a weight {shape} is needed"
            )
        if isinstance(part, GroupedWeight):
            check_extras(part, first)
            if rows:
                fill_grouped(weight, row, part)
        else:
            weight.data[row : row + rows] = to_tensor(part).to(device)
        row += rows
    if weight is None or row != shape[0]:
        raise CheckpointError(f"weight with {row} rows where {shape[0]} are needed")
    return weight


def count_packed_bytes(shape: tuple[int, int], kind: str) -> int:
    """Bytes `pack` holds for a weight without bias, exactly."""
    return count_bytes(shape, kind)


def from_dense(data: Tensor, bias: Tensor | None = None) -> CudaWeight:
    """A weight of a tensor [N,K] that is on the device already."""
    kind = next(name for name, dtype in DENSE_TYPES.items() if dtype == data.dtype)
    return CudaWeight((data.shape[0], data.shape[1]), kind, data.contiguous(), bias)


def allocate(
    shape: tuple[int, int], kind: str, device: torch.device, bias: Tensor | None = None
) -> CudaWeight:
    """A weight without its numbers."""
    (n, k), form = shape, find_form(kind)
    if form is None:
        return CudaWeight(
            shape, kind, torch.empty(n, k, dtype=DENSE_TYPES[kind], device=device), bias
        )
    wide = pad(k)

    def rows(name: str, count: int) -> Tensor | None:
        if not (name and count):
            return None
        return torch.zeros(count, n, dtype=getattr(torch, name), device=device)

    groups = wide // form.group if form.group else 0
    codes = torch.empty(n, wide // (8 if form.packed else 4), dtype=torch.int32, device=device)
    return CudaWeight(
        shape, kind, codes, bias, form,
        rows(form.scale_type, groups * (2 if form.paired else 1)),
        rows(form.low_type, 0 if form.paired else groups),
        rows(form.super_type, 2 * wide // form.super_group if form.super_group else 0),
        None,
        torch.empty(n, dtype=torch.float32, device=device) if form.row_scaled else None,
        torch.empty(k, dtype=torch.int32, device=device) if form.ordered else None,
    )  # fmt: skip


def fill_grouped(weight: CudaWeight, row: int, part: GroupedWeight) -> None:
    """Copies a part to the rows from `row` on."""
    form, rows = weight.form, part.shape[0]
    assert form is not None
    device, end = weight.data.device, row + rows
    weight.data[row:end] = store_codes(to_tensor(part.codes).to(device), form.packed)
    scales: Any = part.scales
    if scales is not None and scales.dtype == np.uint8 and not form.super_group:
        scales = np.ldexp(np.float32(1), scales.astype(np.int32) - 128)  # exact in bfloat16
    lows: Any = part.mins if part.zeros is None else part.zeros
    if form.paired and lows is None:
        lows = np.full(scales.shape, part.zero, np.float32)
    store_groups(weight, row, to_device(scales, device), to_device(lows, device))
    store_supers(
        weight, row, to_device(part.super_scales, device), to_device(part.super_mins, device)
    )
    if weight.row_scales is not None:
        weight.row_scales[row:end] = to_tensor(part.row_scales).to(device)
    if weight.columns is not None:
        weight.columns.copy_(to_tensor(part.columns))


def store_groups(weight: CudaWeight, row: int, scales: Tensor | None, lows: Tensor | None) -> None:
    """Numbers [n,G] of the groups of the rows from `row` on."""
    form = weight.form
    assert form is not None
    if weight.scales is None or scales is None:
        return
    if form.paired:
        assert lows is not None
        both = torch.stack((scales.to(weight.scales.dtype), lows.to(weight.scales.dtype)), 2)
        store_numbers(weight.scales, row, both.view(len(both), -1), 2)
        return
    store_numbers(weight.scales, row, scales, UNIT // form.group)
    if weight.lows is not None and lows is not None:
        store_numbers(weight.lows, row, lows, UNIT // form.group)


def store_supers(weight: CudaWeight, row: int, scales: Tensor | None, mins: Tensor | None) -> None:
    """Numbers [n,S] of the super-groups of the rows from `row` on."""
    if weight.supers is not None and scales is not None:
        both = torch.stack((scales, torch.zeros_like(scales) if mins is None else mins), 2)
        store_numbers(weight.supers, row, both.view(len(both), -1), 2)


def store_numbers(to: Tensor, row: int, numbers: Tensor, others: int) -> None:
    """Numbers [n,G] of the rows from `row` on, `others` of a row side by side."""
    n, held = numbers.shape
    units = to.shape[0] // others
    if held != to.shape[0]:
        numbers = torch.nn.functional.pad(numbers, (0, to.shape[0] - held))
    there = to.view(units, to.shape[1], others)[:, row : row + n]
    there.copy_(numbers.view(n, units, others).permute(1, 0, 2))


def to_device(array: Any, device: torch.device) -> Tensor | None:
    return None if array is None else to_tensor(array).to(device)


def store_codes(codes: Tensor, packed: bool) -> Tensor:
    """[n,K] codes, one a byte -> words of whole units, two codes a byte where `packed`."""
    n, k = codes.shape
    wide = pad(k)
    codes = codes.view(torch.uint8)
    if wide != k:
        codes = torch.nn.functional.pad(codes, (0, wide - k))
    if packed:
        halves = codes.view(n, wide // UNIT, 2, UNIT // 2)
        codes = halves[:, :, 0] | (halves[:, :, 1] << 4)
    parts = codes.reshape(n, -1, 4, 2, 4, 2)  # j, h, q, e
    return parts.permute(0, 1, 4, 2, 3, 5).reshape(n, -1).view(torch.int32)


def to_tensor(array: Any) -> Tensor:
    """A tensor of an array's numbers; uint16 holds bfloat16 bits."""
    own = np.ascontiguousarray(array)
    if not own.flags.writeable:
        own = own.copy()
    if own.dtype == np.uint16:
        return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(own)


def upload_bias(shape: tuple[int, int], bias: Any, device: torch.device) -> Tensor | None:
    if bias is None:
        return None
    own = np.array(bias, np.float32)
    if own.shape != shape[:1]:
        raise CheckpointError(f"bias of shape {own.shape} where {shape[:1]} is needed")
    return torch.from_numpy(own).to(device)


def check_extras(part: GroupedWeight, first: Any) -> None:
    """The order of columns and the scale of activations must be those of the first part."""
    whole = part.columns is None or np.array_equal(part.columns, first.columns)
    if not whole or part.input_scale != first.input_scale:
        raise CheckpointError("parts of one weight with columns or activations of their own")


def quantise_on_device(dense: Tensor, kind: str) -> CudaWeight:
    """Codes nearest to a tensor [N,K] on the device, by plain rules; for measurements.  Kinds:
    q4_0, q8_0, q4_k, q6_k, u4_g128, e4m3_rows.
    """
    n, k = dense.shape
    check_columns((n, k), kind)
    weight = allocate((n, k), kind, dense.device)
    rows = max(1, (1 << 26) // k)
    for row in range(0, n, rows):
        _quantise_rows(weight, row, dense[row : row + rows].float())
    return weight


def _quantise_rows(weight: CudaWeight, row: int, w: Tensor) -> None:
    form, (n, k) = weight.form, w.shape
    assert form is not None
    end, group = row + n, form.group or k
    x = w.view(n, k // group, group)
    if form.read == "e4m3":
        assert weight.row_scales is not None
        scale = w.abs().amax(1).clamp(min=1e-12) / 448
        weight.row_scales[row:end] = scale
        codes = (w / scale[:, None]).to(torch.float8_e4m3fn).view(torch.uint8)
        weight.data[row:end] = store_codes(codes, False)
        return
    low, high = (0, 15) if form.lows else (-form.zero, form.zero - 1) if form.zero else (-127, 127)
    lows = x.amin(2, keepdim=True).clamp(max=0) if form.lows else torch.zeros_like(x[:, :, :1])
    scale = (x.amax(2, keepdim=True) - lows if form.lows else x.abs().amax(2, keepdim=True)) / high
    scale = scale.clamp(min=1e-7)
    zeros = (-lows / scale).round() if form.lows == "zeros" else -lows / scale
    stored = zeros + form.zero if form.lows == "zeros" else -lows
    if weight.supers is None:
        store_groups(weight, row, scale[:, :, 0], stored[:, :, 0])
    else:  # scales and minima in 6 bits, of one number for 256
        top, scale8 = _nest(scale[:, :, 0], form.super_group // group)
        low_top, low8 = _nest(stored[:, :, 0], form.super_group // group)
        store_groups(weight, row, scale8, low8)
        store_supers(weight, row, top, low_top)
    codes = (x / scale + zeros).round().clamp(low, high).view(n, k) + form.zero
    weight.data[row:end] = store_codes(
        codes.to(torch.int8 if form.signed else torch.uint8), form.packed
    )


def _nest(numbers: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Numbers [n,G] as one of each super-group times whole ones of up to 63."""
    by = numbers.view(len(numbers), -1, each)
    top = (by.amax(2) / 63).clamp(min=1e-7)
    return top, (by / top[:, :, None]).round().view(numbers.shape)
