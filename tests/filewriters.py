"""Writers of safetensors and GGUF for tests, honest by default, able to lie piece by piece.

Made from the published formats and not from our readers, so that one checks the other.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensor = tuple[str, tuple[int, ...], bytes]  # kind, shape [N, K], the bytes on disk

SAFE_DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "bool": "BOOL", "i32": "I32"}
GGML_TYPES = {"f32": 0, "f16": 1, "bf16": 30}
# Quantised types: number, elements and bytes of a block, where its float16 scales and minima lie.
# MXFP4's and NVFP4's scales are bytes, IQ1_M's is scattered: `random_tensor` sees to them.
BLOCKS = {
    "q4_0": (2, 32, 18, (0,)),
    "q4_1": (3, 32, 20, (0, 2)),
    "q5_0": (6, 32, 22, (0,)),
    "q5_1": (7, 32, 24, (0, 2)),
    "q8_0": (8, 32, 34, (0,)),
    "q2_k": (10, 256, 84, (80, 82)),
    "q3_k": (11, 256, 110, (108,)),
    "q4_k": (12, 256, 144, (0, 2)),
    "q5_k": (13, 256, 176, (0, 2)),
    "q6_k": (14, 256, 210, (208,)),
    "iq2_xxs": (16, 256, 66, (0,)),
    "iq2_xs": (17, 256, 74, (0,)),
    "iq3_xxs": (18, 256, 98, (0,)),
    "iq1_s": (19, 256, 50, (0,)),
    "iq4_nl": (20, 32, 18, (0,)),
    "iq3_s": (21, 256, 110, (0,)),
    "iq2_s": (22, 256, 82, (0,)),
    "iq4_xs": (23, 256, 136, (0,)),
    "iq1_m": (29, 256, 56, ()),
    "tq1_0": (34, 256, 54, (52,)),
    "tq2_0": (35, 256, 66, (64,)),
    "mxfp4": (39, 32, 17, ()),
    "nvfp4": (40, 64, 36, ()),
}
GGML_TYPES |= {kind: code for kind, (code, *_) in BLOCKS.items()}
NUMPY_CODES = {
    "u1": 0,
    "i1": 1,
    "u2": 2,
    "i2": 3,
    "u4": 4,
    "i4": 5,
    "f4": 6,
    "b1": 7,
    "u8": 10,
    "i8": 11,
    "f8": 12,
}


def encode(x: NDArray[Any], kind: str) -> Tensor:
    """A float32 array as a tensor of this kind; q8_0 by ggml's rounding, bf16 to nearest even."""
    x = np.ascontiguousarray(x, np.float32)
    if kind == "f32":
        raw = x.tobytes()
    elif kind == "f16":
        raw = x.astype(np.float16).tobytes()
    elif kind == "bf16":
        u = x.view(np.uint32)
        raw = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    elif kind == "q8_0":
        groups = x.reshape(-1, 32)
        scale = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(scale == 0, 0, groups / scale)
        codes = (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int8)
        raw = np.concatenate(
            [scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)], axis=1
        ).tobytes()
    else:
        raise ValueError(kind)
    return kind, x.shape, raw


def random_tensor(
    rng: np.random.Generator, kind: str, shape: tuple[int, ...], most: float = 0.1
) -> Tensor:
    """Random values; for the quantised kinds random block bytes with finite scales up to `most`."""
    if kind not in BLOCKS or kind == "q8_0":
        return encode(rng.standard_normal(shape).astype(np.float32), kind)
    _, block, nbytes, places = BLOCKS[kind]
    raw = rng.integers(0, 256, (int(np.prod(shape)) // block, nbytes), dtype=np.uint8)
    scale = rng.uniform(most / 100, most, (len(raw), 2)).astype(np.float16)
    for at, column in zip(places, scale.T, strict=False):
        raw[:, at : at + 2] = column.copy().view(np.uint8).reshape(-1, 2)
    if kind == "mxfp4":  # exponents of powers of two; the table's values are doubled
        raw[:, 0] = 128 + np.floor(np.log2(scale[:, 0].astype(np.float32)))
    if kind == "nvfp4":  # E4M3: 0 to 2^-7 times 1.875
        raw[:, :4] %= 8
    if kind == "iq1_m":  # four bits of the scale above each of four words
        words = raw[:, 48:].copy().view("<u2")
        bits = scale[:, :1].view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) << np.uint16(12)
        raw[:, 48:] = (words & np.uint16(0x0FFF) | bits).astype("<u2").view(np.uint8)
    return kind, shape, raw.tobytes()


# --- safetensors ---


def safetensors_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """`header` as an object, or as raw bytes; `length` lies about its size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return pack("<Q", len(text) if length is None else length) + text + data


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": SAFE_DTYPES[kind], "shape": list(shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(safetensors_bytes(text + b" " * (-len(text) % 8), data))


def write_folder(
    path: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor], shards: int = 1
) -> Path:
    """A Hugging Face folder, in one file or in `shards` with an index."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    if shards == 1:
        write_safetensors(path / "model.safetensors", tensors)
        return path
    names = list(tensors)
    where: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i::shards]
        write_safetensors(path / file, {name: tensors[name] for name in part})
        where |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(len(t[2]) for t in tensors.values())},
        "weight_map": where,
    }
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


# --- GGUF ---


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return pack("<Q", len(raw)) + raw


def value(x: object) -> bytes:
    """Type code and payload of a metadata value: whole numbers as u32, lists of numbers by NumPy's
    type.
    """
    if isinstance(x, str):
        return pack("<I", 8) + string(x)
    if isinstance(x, bool):
        return pack("<I?", 7, x)
    if isinstance(x, int):
        return pack("<II", 4, x)
    if isinstance(x, float):
        return pack("<If", 6, x)
    if isinstance(x, list):
        return pack("<IIQ", 9, 8, len(x)) + b"".join(string(s) for s in x)
    assert isinstance(x, np.ndarray)
    return pack("<IIQ", 9, NUMPY_CODES[x.dtype.str[1:]], len(x)) + x.tobytes()


def key(name: str | bytes, x: object) -> bytes:
    return string(name) + (x if isinstance(x, bytes) else value(x))


def entry(name: str | bytes, shape: tuple[int, ...], code: int, offset: int) -> bytes:
    """A line of the tensor table; `shape` is [N, K]."""
    axes = b"".join(pack("<Q", n) for n in reversed(shape))
    return string(name) + pack("<I", len(shape)) + axes + pack("<IQ", code, offset)


def gguf_bytes(
    keys: list[bytes],
    entries: list[bytes],
    data: bytes = b"",
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
    version: int = 3,
) -> bytes:
    """`counts` (tensors, keys) lies about how many follow."""
    tensors, metas = counts or (len(entries), len(keys))
    head = b"GGUF" + pack("<IQQ", version, tensors, metas) + b"".join(keys) + b"".join(entries)
    return head + b"\0" * (-len(head) % alignment) + data


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Path:
    entries, data = [], b""
    for name, (kind, shape, raw) in tensors.items():
        entries.append(entry(name, shape, GGML_TYPES[kind], len(data)))
        data += raw + b"\0" * (-len(raw) % 32)
    path.write_bytes(gguf_bytes([key(k, v) for k, v in metadata.items()], entries, data))
    return path
