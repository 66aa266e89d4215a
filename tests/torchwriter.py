"""Writes PyTorch's files piece by piece, right or wrong: opcodes of a pickle, the zip archive, and
the older stream.

Written from PyTorch's torch/serialization.py and Python's pickletools, not from our reader.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from struct import pack

from filewriters import Tensor

PROTO, EMPTY = b"\x80\x02", b"ccollections\nOrderedDict\n)R"
MAGIC = 0x1950A86A20F9469CFC6C


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + pack("<I", len(raw)) + raw


def whole(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def many(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(whole, values)) + b"t"


def storage(kind: str, key: str, count: int, last: bytes = b"") -> bytes:
    """A persistent id; `last` is one more element, which the older format has."""
    return (
        b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu")
        + whole(count) + last + b"tQ"
    )  # fmt: skip


def tensor(
    of: bytes, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, offset: int = 0
) -> bytes:
    if strides is None:
        steps = [1]
        for n in reversed(shape[1:]):
            steps.append(steps[-1] * n)
        strides = tuple(reversed(steps)) if shape else ()
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + of + whole(offset) + many(shape) + many(strides)
        + b"\x89" + EMPTY + b"tR"
    )  # fmt: skip


def state(items: Mapping[str, bytes]) -> bytes:
    """A state dict's pickle, of opcodes that make the values."""
    pairs = b"".join(text(name) + value for name, value in items.items())
    return PROTO + EMPTY + b"(" + pairs + b"u."


def archive(
    pickle: bytes, storages: Mapping[str, bytes], others: Mapping[str, bytes] | None = None
) -> bytes:
    """A zip archive as torch.save writes it; `others` are members by their whole name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", pickle)
        for key, data in storages.items():
            file.writestr(f"archive/data/{key}", data)
        for name, data in (others or {"archive/version": b"3\n"}).items():
            file.writestr(name, data)
    return buffer.getvalue()


def stream(
    pickle: bytes,
    storages: Mapping[str, tuple[int, bytes]],
    magic: int = MAGIC,
    protocol: int = 1001,
    machine: bytes = b"}" + b"(" + text("little_endian") + b"\x88u",
) -> bytes:
    """The format before PyTorch 1.6: keys with the number of elements, and the bytes."""
    keys = PROTO + b"](" + b"".join(map(text, storages)) + b"e."
    heads = [PROTO + whole(magic) + b".", PROTO + whole(protocol) + b".", PROTO + machine + b"."]
    data = b"".join(pack("<Q", count) + raw for count, raw in storages.values())
    return b"".join(heads) + pickle + keys + data


STORAGES = {
    "f32": ("FloatStorage", 4), "f16": ("HalfStorage", 2), "bf16": ("BFloat16Storage", 2),
    "i64": ("LongStorage", 8), "bool": ("BoolStorage", 1),
}  # fmt: skip


def torch_bytes(
    tensors: Mapping[str, Tensor], old: bool = False, tied: Mapping[str, str] | None = None
) -> bytes:
    """A model, one storage a tensor, as torch.save writes it, or as it did before 1.6.  `tied`
    names share the storage of others.
    """
    items, held = {}, {}
    for i, (name, (kind, shape, raw)) in enumerate(tensors.items()):
        made, size = STORAGES[kind]
        of = storage(made, str(i), len(raw) // size, b"N" if old else b"")
        items[name] = tensor(of, shape)
        held[str(i)] = (len(raw) // size, raw)
    items |= {name: items[other] for name, other in (tied or {}).items()}
    if old:
        return stream(state(items), held)
    return archive(state(items), {key: raw for key, (_, raw) in held.items()})


def torch_folder(
    path: Path, config: str, tensors: Mapping[str, Tensor], tied: Mapping[str, str]
) -> Path:
    """A folder of two parts with an index, `tied` names in the first."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(config)
    names, where = list(tensors), {}
    for i in range(2):
        part = {name: tensors[name] for name in names[i::2]}
        both = {name: other for name, other in tied.items() if other in part}
        file = f"pytorch_model-{i + 1:05}-of-00002.bin"
        (path / file).write_bytes(torch_bytes(part, tied=both))
        where |= dict.fromkeys((*part, *both), file)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=1))
    return path
