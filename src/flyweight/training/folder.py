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
    """Raises `ConfigError` for a folder that exists or cannot be made."""
    if path.exists():
        raise ConfigError("exists already; name a new folder", "--output", value=str(path))
    if not path.absolute().parent.is_dir():
        raise ConfigError("is in a folder that does not exist", "--output", value=str(path))


def write_heads(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, F32], dtype: str
) -> int:
    """The bytes of its tensors' file."""
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
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
    partial.rename(path)
    return (path / "model.safetensors").stat().st_size
