"""A folder of safetensors whose tensors, header's text and config a test changes before it is
written again, and changes of one thing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filewriters import safetensors_bytes
from flyweight.errors import CheckpointError
from flyweight.weights.checkpoint import open_checkpoint
from hostile_files import refusal_of

Q = "model.layers.0.self_attn.q_proj"
W = f"{Q}.weight"
QUANTIZED = Path(__file__).parent / "data" / "models-quantized"
TYPES = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip


@dataclass
class EditedFolder:
    """`tensors` are (dtype of the header, values) by name; `config` is that of the quantisation."""

    whole: dict[str, Any]
    text: dict[str, str]
    tensors: dict[str, tuple[str, NDArray[Any]]]

    @classmethod
    def read(cls, name: str, root: Path = QUANTIZED) -> "EditedFolder":
        raw = (root / name / "model.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
        text = header.pop("__metadata__", {})
        tensors = {}
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).copy()
            tensors[key] = (entry["dtype"], values.reshape(entry["shape"]))
        config = json.loads((root / name / "config.json").read_text())
        return cls(config, text, tensors)

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.whole["quantization_config"]
        return found

    def write(self, folder: Path, shards: int = 1) -> Path:
        """Tensors are dealt to the shards in turn."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.whole))
        if shards == 1:
            self._write_file(folder / "model.safetensors", [*self.tensors])
            return folder
        where = {}
        for i in range(shards):
            file, names = (
                f"model-{i + 1:05d}-of-{shards:05d}.safetensors",
                [*self.tensors][i::shards],
            )
            self._write_file(folder / file, names)
            where |= dict.fromkeys(names, file)
        index = json.dumps({"metadata": {}, "weight_map": where})
        (folder / "model.safetensors.index.json").write_text(index)
        return folder

    def _write_file(self, file: Path, names: list[str]) -> None:
        header: dict[str, Any] = {"__metadata__": self.text}
        data = b""
        for name in names:
            dtype, values = self.tensors[name]
            raw = np.ascontiguousarray(values).tobytes()
            span = [len(data), len(data) + len(raw)]
            header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": span}
            data += raw
        file.write_bytes(safetensors_bytes(header, data))


# A folder's name, how it is changed, and what the error says.
Lie = tuple[str, Callable[[EditedFolder], Any], str]


def drop(name: str) -> Callable[[EditedFolder], Any]:
    return lambda folder: folder.tensors.pop(name)


def put(name: str, value: Any, at: Any = 0) -> Callable[[EditedFolder], Any]:
    """One number of a tensor, in place."""

    def change(folder: EditedFolder) -> None:
        folder.tensors[name][1].reshape(-1)[at] = value

    return change


def replace(name: str, values: Any, dtype: str = "") -> Callable[[EditedFolder], Any]:
    """A tensor of other values, or another type."""

    def change(folder: EditedFolder) -> None:
        held, old = folder.tensors[name]
        new = values(old) if callable(values) else values
        folder.tensors[name] = (dtype or held, new)

    return change


def config(**settings: Any) -> Callable[[EditedFolder], Any]:
    return lambda folder: folder.config.update(settings)


def load_all(folder: Path) -> None:
    """Everything a model of it would read."""
    checkpoint = open_checkpoint(folder)
    info = checkpoint.tensors[W]
    if info.shape not in ((64, 64), (128, 128)):
        raise CheckpointError(f"{folder}: {W} has shape {list(info.shape)}, expected [64, 64]")
    for name, found in checkpoint.tensors.items():
        checkpoint.read(name, 0, found.shape[0])


def check_lie(lie: Lie, room: Path) -> None:
    """The folder is read as it is, and refused once it is changed."""
    name, change, message = lie
    folder = EditedFolder.read(name)
    load_all(folder.write(room / "true"))
    change(folder)
    assert message in refusal_of(load_all, folder.write(room / "lie"))
