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

SAFE_DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "q4_k": 12, "q6_k": 14, "bf16": 30}
BLOCKS = {"q4_0": (32, 18), "q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210)}
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


def random_tensor(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Random values; for the quantised kinds random block bytes with finite scales."""
    if kind not in BLOCKS or kind == "q8_0":
        return encode(rng.standard_normal(shape).astype(np.float32), kind)
    block, nbytes = BLOCKS[kind]
    raw = rng.integers(0, 256, (int(np.prod(shape)) // block, nbytes), dtype=np.uint8)
    scale = rng.uniform(0.001, 0.1, (len(raw), 2)).astype(np.float16).view(np.uint8)
    if kind == "q6_k":
        raw[:, 208:210] = scale[:, :2]
    else:
        count = 4 if kind == "q4_k" else 2
        raw[:, :count] = scale[:, :count]
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
