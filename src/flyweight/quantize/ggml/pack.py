"""`GroupedWeight` to the blocks of GGUF, code for code: the inverse of
`weights.formats.{blocks,kquants}`.

Invariant: parsing what is packed gives the same codes, scales and minima; nothing is searched or
rounded.  For weights that another method quantised, such as GPTQ in groups of 32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.grouped import LAYOUTS, GroupedWeight
from flyweight.wire import U8


def pack(weight: GroupedWeight) -> U8:
    """uint8 [N, bytes] of the type `weight.kind` names; ValueError where GGUF has no such type."""
    kind = weight.kind
    if kind not in PACKERS or weight.layout != LAYOUTS[kind]:
        raise ValueError(f"GGUF has no type for {kind or weight.layout}")
    return PACKERS[kind](weight)


def _join_planes(codes: U8, width: int) -> U8:
    """[N, runs, 8 / width, B] codes of `width` bits -> [N, runs, B]: plane i from bit i * width."""
    out = codes[:, :, 0].copy()
    for i in range(1, codes.shape[2]):
        out |= codes[:, :, i] << np.uint8(i * width)
    return out


def _halves(values: NDArray[Any]) -> U8:
    """[N, blocks] float16 -> [N, blocks, 2] bytes."""
    return np.ascontiguousarray(values, "<f2").view(np.uint8).reshape(*values.shape, 2)


def _nibbles(codes: U8, run: int) -> U8:
    """[N, K] codes -> [N, K / (2 run), run] bytes: element i low, i + run high."""
    return _join_planes((codes & np.uint8(15)).reshape(len(codes), -1, 2, run), 4)


def _pack_short(weight: GroupedWeight) -> U8:
    """Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL: blocks of 32."""
    n, k = weight.shape
    parts = [_halves(weight.scales)]  # type: ignore[arg-type]
    if weight.mins is not None:
        parts.append(_halves(-weight.mins))
    if weight.bits == 8:
        return _join(n, *parts, weight.codes.view(np.uint8).reshape(n, k // 32, 32))
    codes = weight.codes.view(np.uint8)
    if weight.bits == 5:
        fifth = (codes >> np.uint8(4)).reshape(n, k // 32, 32)
        parts.append(np.packbits(fifth, axis=2, bitorder="little"))
    return _join(n, *parts, _nibbles(codes, 16))


def _pack_q2_k(weight: GroupedWeight) -> U8:
    n, k = weight.shape
    codes = _join_planes(_codes(weight).reshape(n, k // 128, 4, 32), 2)
    groups = _whole(weight.scales) | _whole(weight.mins) << np.uint8(4)
    return _join(
        n,
        groups.reshape(n, k // 256, 16),
        codes.reshape(n, k // 256, 64),
        _halves(_present(weight.super_scales)),
        _halves(_present(weight.super_mins)),
    )


def _pack_q3_k(weight: GroupedWeight) -> U8:
    n, k = weight.shape
    codes = _codes(weight)
    high = _join_planes((codes >> np.uint8(2)).reshape(n, k // 256, 8, 32), 1)
    low = _join_planes((codes & np.uint8(3)).reshape(n, k // 128, 4, 32), 2)
    scales = (_present(weight.scales) + np.int8(32)).view(np.uint8).reshape(n, k // 256, 16)
    nibbles = _join_planes((scales & np.uint8(15)).reshape(n, k // 256, 2, 8), 4)
    tops = _join_planes((scales >> np.uint8(4)).reshape(n, k // 256, 4, 4), 2)
    runs = low.reshape(n, k // 256, 64)
    return _join(n, high, runs, nibbles, tops, _halves(_present(weight.super_scales)))


def _pack_lined(weight: GroupedWeight) -> U8:
    """Q4_K, Q5_K."""
    n, k = weight.shape
    codes = _codes(weight)
    scales = _whole(weight.scales).reshape(n, k // 256, 8)
    mins = _whole(weight.mins).reshape(n, k // 256, 8)
    (first, later), (least, last) = ((x[:, :, :4], x[:, :, 4:]) for x in (scales, mins))
    parts = [
        _halves(_present(weight.super_scales)),
        _halves(_present(weight.super_mins)),
        first | later >> np.uint8(4) << np.uint8(6),
        least | last >> np.uint8(4) << np.uint8(6),
        (later & np.uint8(15)) | last << np.uint8(4),
    ]
    if weight.bits == 5:
        parts.append(_join_planes((codes >> np.uint8(4)).reshape(n, k // 256, 8, 32), 1))
    return _join(n, *parts, _nibbles(codes, 32).reshape(n, k // 256, 128))


def _pack_q6_k(weight: GroupedWeight) -> U8:
    n, k = weight.shape
    codes = _codes(weight)
    high = _join_planes((codes >> np.uint8(4)).reshape(n, k // 128, 4, 32), 2)
    return _join(
        n,
        _nibbles(codes, 64).reshape(n, k // 256, 128),
        high.reshape(n, k // 256, 64),
        _whole(weight.scales).reshape(n, k // 256, 16),
        _halves(_present(weight.super_scales)),
    )


def _pack_iq4_xs(weight: GroupedWeight) -> U8:
    n, k = weight.shape
    scales = (_present(weight.scales) + np.int8(32)).view(np.uint8).reshape(n, k // 256, 8)
    bits = np.arange(0, 16, 2, dtype=np.uint16)
    top = ((scales >> np.uint8(4)).astype(np.uint16) << bits).sum(axis=2, dtype=np.uint16)
    low = (scales & np.uint8(15)).reshape(n, k // 256, 4, 2)
    return _join(
        n,
        _halves(_present(weight.super_scales)),
        np.ascontiguousarray(top, "<u2").view(np.uint8).reshape(n, k // 256, 2),
        low[..., 0] | low[..., 1] << np.uint8(4),
        _nibbles(_codes(weight), 16).reshape(n, k // 256, 128),
    )


def _join(n: int, *parts: NDArray[Any]) -> U8:
    """[N, blocks, bytes] each -> [N, bytes] of whole blocks."""
    return np.concatenate(parts, axis=2).reshape(n, -1)


def _present(values: NDArray[Any] | None) -> NDArray[Any]:
    assert values is not None
    return values


def _whole(values: NDArray[Any] | None) -> U8:
    return _present(values).view(np.uint8)


def _codes(weight: GroupedWeight) -> U8:
    return weight.codes.view(np.uint8)


PACKERS: dict[str, Callable[[GroupedWeight], U8]] = {
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"), _pack_short),
    "q2_k": _pack_q2_k,
    "q3_k": _pack_q3_k,
    "q4_k": _pack_lined,
    "q5_k": _pack_lined,
    "q6_k": _pack_q6_k,
    "iq4_xs": _pack_iq4_xs,
}
