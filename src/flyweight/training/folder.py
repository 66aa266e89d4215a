"""Writes trained heads as a folder: config.json and model.safetensors, in bfloat16 or in 8 bits.

Invariant: a folder is written under another name first, so none is ever half of one.  Codes of 8
bits are compressed-tensors': `NAME` holds integers, `NAME_scale` [N,1] what each row is multiplied
by; vectors stay float32.  Knows no torch.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import ConfigError
from flyweight.ops.base import to_bf16_bits
from flyweight.quantize.output.container import OutputTensor, SafetensorsWriter
from flyweight.wire import F32

DTYPES = ("bf16", "int8")


def check_output(path: Path) -> None:
    """Raises `ConfigError` for a folder that exists, or is not to be made."""
    if path.exists():
        raise ConfigError("exists already; name a new folder", "--output", value=str(path))
    if not path.absolute().parent.is_dir():
        raise ConfigError("is in a folder that does not exist", "--output", value=str(path))
    partial = find_partial(path)
    if partial.exists():
        problem = f"is written as {partial} first, which exists; remove it or name another folder"
        raise ConfigError(problem, "--output", value=str(path))


def find_partial(path: Path) -> Path:
    """Where a folder is written before it has its name."""
    return path.with_name(path.name + ".partial")


def write_heads(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, F32], dtype: str
) -> int:
    """The bytes of its tensors' file."""
    check_output(path)
    partial = find_partial(path)
    partial.mkdir()
    try:
        _write_files(partial, config, tensors, dtype)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # it is ours
        raise
    return (path / "model.safetensors").stat().st_size


def _write_files(
    partial: Path, config: Mapping[str, Any], tensors: Mapping[str, F32], dtype: str
) -> None:
    (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    encoded: dict[str, tuple[OutputTensor, bytes]] = {}
    for name, values in tensors.items():
        if values.ndim == 1:
            encoded[name] = OutputTensor(name, "f32", values.shape), values.tobytes()
        elif dtype == "int8":
            scale = np.maximum(np.abs(values).max(1, keepdims=True) / 127, 1e-30)
            codes = np.rint(values / scale).astype(np.int8)
            encoded[name] = OutputTensor(name, "i8", values.shape), codes.tobytes()
            held = OutputTensor(f"{name}_scale", "f32", scale.shape)
            encoded[held.name] = held, scale.astype(np.float32).tobytes()
        else:
            encoded[name] = OutputTensor(name, "bf16", values.shape), to_bf16_bits(values).tobytes()
    outline = [tensor for tensor, _ in encoded.values()]
    with SafetensorsWriter(partial / "model.safetensors", outline, {"format": "pt"}) as file:
        for name, (_, data) in encoded.items():
            file.write(name, data)
