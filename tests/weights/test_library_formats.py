"""Formats of bitsandbytes, fp8 and hqq on arrays: shapes that no fixture has, each against the
published definition in NumPy.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flyweight.ops.base import to_bf16_bits
from flyweight.ops.grouped import GroupedWeight, widen
from flyweight.ops.tables import E4M3, NF4
from flyweight.weights.formats.claims import Claim, Folder
from flyweight.weights.formats.joined import claim_matrices
from flyweight.weights.quantised import read_matrix
from flyweight.weights.tensorinfo import TensorInfo
from flyweight.wire import F32

Arrays = Mapping[str, tuple[str, NDArray[Any]]]  # kind and values by name


@dataclass
class ArrayPart:
    """A tensor of a claim that is an array."""

    name: str
    values: NDArray[Any]

    def rows(self, start: int, stop: int, axes: int = 1) -> NDArray[Any]:
        return self.values.reshape(-1, *self.values.shape[axes:])[start:stop].copy()

    def columns(self, start: int, stop: int) -> NDArray[Any]:
        return self.values[:, start:stop].copy()

    def all(self) -> NDArray[Any]:
        return self.values.copy()


def read(config: dict[str, Any], arrays: Arrays, name: str = "m.weight") -> tuple[Claim, F32]:
    """A matrix's claim, and its values [rows, K] read in parts of 5."""
    infos = {key: TensorInfo(key, x.shape, kind) for key, (kind, x) in arrays.items()}
    parts = {key: ArrayPart(key, x) for key, (_, x) in arrays.items()}
    claim = claim_matrices(Folder(config, infos, "here", parts.__getitem__))[name]
    mine = {role: parts[part] for role, part in claim.parts.items()}
    count = int(np.prod(claim.shape[:-1]))
    ends = [*range(0, count, 5), count]
    found = []
    for a, b in itertools.pairwise(ends):
        rows = read_matrix(claim, mine, a, b, name)
        if isinstance(rows, GroupedWeight):
            assert rows.kind == claim.kind
            rows = rows.dequantize()
        found.append(rows if rows.dtype == np.float32 else widen(rows))
    return claim, np.concatenate(found)


def draw_codes(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    codes = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 1
    return codes


def spread(scales: F32, block: tuple[int, int], shape: tuple[int, int]) -> F32:
    wide = np.repeat(np.repeat(scales, block[0], axis=-2), block[1], axis=-1)
    return wide[..., : shape[0], : shape[1]]


SCALES = {"f32": "", "bf16": "_bf16", "e8m0": "_f32", "u8": "_f32"}


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(
    ("shape", "group"), [((200, 384), 128), ((200, 320), 64), ((40, 160), 32), ((130, 200), 0)]
)
def test_fp8_blocks_that_are_cut_off(kind: str, shape: tuple[int, int], group: int) -> None:
    codes = draw_codes(shape)
    grid = tuple(-(-n // 128) for n in shape)
    drawn = np.random.default_rng(2).uniform(0.001, 0.1, grid).astype(np.float32)
    held: NDArray[Any] = to_bf16_bits(drawn) if kind == "bf16" else drawn
    if kind in ("e8m0", "u8"):
        held = np.random.default_rng(2).integers(110, 127, grid, np.uint8)
    true = (
        np.ldexp(np.float32(1), held.astype(int) - 127) if held.dtype == np.uint8 else widen(held)
    )
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    arrays = {"m.weight": ("e4m3", codes), "m.weight_scale_inv": (kind, held)}
    claim, found = read(config, arrays)
    values = np.array(E4M3, np.float32)[codes] * spread(true, (128, 128), shape)
    suffix = SCALES[kind] or "_f32"
    assert claim.kind == (f"e4m3_g{group}{suffix}" if group else "bf16")
    assert (found == (values if group else widen(to_bf16_bits(values)))).all()


@pytest.mark.parametrize("held", [(3,), (3, 1, 1), (3, 40), (3, 40, 1), (3, 2, 2)])
def test_fp8_of_experts(held: tuple[int, ...]) -> None:
    codes = draw_codes((3, 40, 64))
    scales = np.random.default_rng(2).uniform(0.001, 0.1, held).astype(np.float32)
    config = {"quant_method": "fp8"} | (
        {"weight_block_size": [32, 32]} if held[1:] == (2, 2) else {}
    )
    arrays = {"m.gate_up_proj": ("e4m3", codes), "m.gate_up_proj_scale_inv": ("f32", scales)}
    claim, found = read(config, arrays, "m.gate_up_proj")
    by = spread(scales, (32, 32), (40, 64)) if held[1:] == (2, 2) else scales.reshape(3, -1, 1)
    assert claim.shape == (3, 40, 64)
    assert (found == (np.array(E4M3, np.float32)[codes] * by).reshape(120, 64)).all()


@pytest.mark.parametrize("storage", ["u8", "f32"])
@pytest.mark.parametrize("nested", [0, 16])
@pytest.mark.parametrize(
    ("shape", "block", "kind"),
    [
        ((40, 64), 4096, "nf4_g64_f32"),
        ((40, 32), 256, "nf4_g32_f32"),
        ((40, 256), 64, "nf4_g64_f32"),
        ((40, 256), 1024, "nf4_g128_f32"),
        ((40, 24), 64, "bf16"),
    ],
)
def test_nf4_blocks(
    shape: tuple[int, int], block: int, kind: str, nested: int, storage: str
) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, shape[0] * shape[1]).astype(np.uint8)
    packed = (codes[::2] << 4 | codes[1::2])[:, None]
    held = packed if storage == "u8" else packed.reshape(-1).view("<f4")[:, None]
    blocks = -(-codes.size // block)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "shape": list(shape)}
    arrays = {
        "m.weight": (storage, held),
        "m.weight.quant_map": ("f32", np.array(NF4, np.float32)),
    }
    absmax: NDArray[Any] = rng.uniform(0.1, 1, blocks).astype(np.float32)
    if nested:
        table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        outer = rng.uniform(0.1, 1, -(-blocks // nested)).astype(np.float32)
        small = rng.integers(0, 256, blocks).astype(np.uint8)
        state |= {"nested_blocksize": nested, "nested_offset": 0.3}
        arrays |= {
            "m.weight.absmax": ("u8", small),
            "m.weight.nested_quant_map": ("f32", table),
            "m.weight.nested_absmax": ("f32", outer),
        }
        absmax = table[small] * outer[np.arange(blocks) // nested] + np.float32(0.3)
    else:
        arrays["m.weight.absmax"] = ("f32", absmax)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    arrays["m.weight.quant_state.bitsandbytes__nf4"] = ("u8", text)
    claim, found = read({"quant_method": "bitsandbytes"}, arrays)
    values = np.array(NF4, np.float32)[codes] * absmax[np.arange(codes.size) // block]
    values = values.reshape(shape)
    assert claim.kind == kind
    assert (found == (widen(to_bf16_bits(values)) if kind == "bf16" else values)).all()


def note(value: Any, dtype: type = np.int32) -> tuple[str, NDArray[Any]]:
    kinds = {np.int32: "i32", np.int64: "i64", np.float32: "f32"}
    return kinds[dtype], np.array(value, dtype)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("bits", "group"), [(3, 64), (3, 8), (4, 128), (4, 16), (1.58, 32)])
def test_hqq(bits: float, group: int, axis: int) -> None:
    """Packed along the first axis, of floats' bytes where there are two codes a byte."""
    shape, rng = (24, 96), np.random.default_rng(4)
    runs = shape[0] * shape[1] // group
    codes = rng.integers(
        0, 3 if bits < 2 else 1 << int(bits), (runs, group) if axis else (group, runs)
    )
    codes = codes.astype(np.uint8)
    lanes, width = (10, 3) if bits == 3 else (4, 2) if bits < 2 else (2, 4)
    step = -(-len(codes) // lanes)
    filled = np.zeros((step * lanes, codes.shape[1]), np.uint32)
    filled[: len(codes)] = codes
    packed = np.zeros((step, codes.shape[1]), np.uint32)
    for lane in range(lanes):
        packed |= filled[lane * step : (lane + 1) * step] << np.uint32((lanes - 1 - lane) * width)
    if bits == 3:
        held = ("i32", packed.astype("<i4"))
    elif bits == 4:
        held = ("f16", packed.astype(np.uint8).view("<f2"))
    else:
        held = ("u8", packed.astype(np.uint8))
    scale = rng.uniform(0.01, 0.1, (runs, 1) if axis else (1, runs)).astype(np.float16)
    zero = rng.uniform(0, 5, scale.shape).astype(np.float16)
    arrays = {
        "m.W_q": held,
        "m.scale": ("f16", scale),
        "m.zero": ("f16", zero),
        "m.nbits": note(bits, np.float32 if bits < 2 else np.int32),
        "m.group_size": note(group),
        "m.axis": note(axis),
        "m.shape": note(shape, np.int64),
    }
    claim, found = read({"quant_method": "hqq"}, arrays)
    values = scale.astype(np.float32) * (codes.astype(np.float32) - zero.astype(np.float32))
    values = values.reshape(shape)
    read_as = {3: "u3", 4: "u4"}.get(int(bits), "u2") if axis and group >= 32 else ""
    assert claim.kind.split("_")[0] == (read_as or "bf16")
    assert (found == (values if read_as else widen(to_bf16_bits(values)))).all()
