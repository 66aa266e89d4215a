"""The container: our reader and the gguf package read what was written, in whatever order."""

import json
from pathlib import Path

import numpy as np
import pytest

import filewriters
from flyweight.errors import ConfigError
from flyweight.quantize.ggml.container import (
    GgufTensor,
    GgufWriter,
    make_value,
    read_metadata,
)
from flyweight.weights.gguf import SCALARS, read_gguf

RNG = np.random.default_rng(5)
METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "naïve 模型",
    "whole": 7,
    "negative": -3,
    "large": 1 << 40,
    "lowest": -(1 << 60),
    "real": 0.5,
    "true": True,
    "tokens": ["a", "", "\u2581b", "\udcff"],
    "no tokens": [],
    **{f"scalar.{name}": np.dtype(name).type(1) for name in SCALARS.values()},
    **{f"array.{name}": np.arange(5).astype(name) for name in SCALARS.values()},
}
TENSORS = [
    GgufTensor("token_embd.weight", "q4_0", (3, 64)),
    GgufTensor("blk.0.attn_norm.weight", "f32", (5,)),
    GgufTensor("blk.0.ffn_down_exps.weight", "q6_k", (2, 3, 256)),
    GgufTensor("half", "f16", (3, 3)),
    GgufTensor("brain", "bf16", (1, 7)),
]


def make_bytes(tensor: GgufTensor) -> bytes:
    return RNG.integers(0, 256, tensor.nbytes, dtype=np.uint8).tobytes()


def test_equals_another_writer(tmp_path: Path) -> None:
    metadata = {k: METADATA[k] for k in ("general.architecture", "whole", "real", "true")}
    metadata["array"] = np.arange(4, dtype=np.int32)
    tensors = {t.name: (t.kind, t.shape, make_bytes(t)) for t in TENSORS}
    expected = filewriters.write_gguf(tmp_path / "a.gguf", metadata, tensors).read_bytes()
    with GgufWriter(tmp_path / "b.gguf", TENSORS, metadata) as writer:
        for tensor in TENSORS:
            writer.write(tensor.name, tensors[tensor.name][2])
    assert (tmp_path / "b.gguf").read_bytes() == expected


@pytest.mark.parametrize("alignment", [32, 256])
def test_read_back(tmp_path: Path, alignment: int) -> None:
    path, data = tmp_path / "m.gguf", {t.name: make_bytes(t) for t in TENSORS}
    metadata = METADATA | {"general.alignment": alignment}
    with GgufWriter(path, TENSORS, metadata) as writer:
        assert writer.nbytes == path.stat().st_size
        for tensor in reversed(TENSORS):
            raw = data[tensor.name]
            writer.write(tensor.name, raw[9:], 9)
            writer.write(tensor.name, raw[:9])
        writer.sync()
    found = read_gguf(path)
    assert list(found.metadata) == list(metadata)
    for key, value in found.metadata.items():
        assert np.array_equal(np.asarray(value), np.asarray(metadata[key])), key
    for tensor in TENSORS:
        span = found.spans[tensor.name]
        assert (span.shape, span.kind, span.offset % alignment) == (tensor.shape, tensor.kind, 0)
        assert found.file.copy(span.offset, span.nbytes, "") == data[tensor.name]
    # once more from what was read: the same bytes
    again = tmp_path / "again.gguf"
    with GgufWriter(again, TENSORS, read_metadata(found)) as writer:
        for name, raw in data.items():
            writer.write(name, raw)
    assert again.read_bytes() == path.read_bytes()
    found.file.close()


def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path, data = tmp_path / "m.gguf", {t.name: make_bytes(t) for t in TENSORS}
    plain = {k: v for k, v in METADATA.items() if k != "tokens"}
    plain["tokens"] = ["a", "", "\u2581b"]
    with GgufWriter(path, TENSORS, plain) as writer:
        for name, raw in data.items():
            writer.write(name, raw)
    reader = gguf.GGUFReader(path)
    for key, value in plain.items():
        if key == "no tokens":  # whose elements' type the package forgets
            continue
        found = reader.fields[key].contents()
        expected = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        assert found == expected, key
    for tensor, found in zip(TENSORS, reader.tensors, strict=True):
        assert found.name == tensor.name and found.data.tobytes() == data[tensor.name]
        assert tuple(found.shape[::-1]) == tensor.shape
        assert found.tensor_type.name.lower() == tensor.kind


def test_opened_again_it_keeps_what_was_written(tmp_path: Path) -> None:
    path, data = tmp_path / "m.gguf", {t.name: make_bytes(t) for t in TENSORS}
    room = {"flyweight.passport": 64}
    with GgufWriter(path, TENSORS, METADATA, room) as writer:
        writer.write("half", data["half"])
        writer.fill("flyweight.passport", json.dumps({"kld": 0.25}))
    with GgufWriter(path, TENSORS, METADATA, room) as writer:
        for name in data.keys() - {"half"}:
            writer.write(name, data[name])
    found = read_gguf(path)
    for name, raw in data.items():
        assert found.file.copy(found.spans[name].offset, len(raw), "") == raw
    passport = found.metadata["flyweight.passport"]
    assert isinstance(passport, str) and len(passport) == 64
    assert json.loads(passport) == {"kld": 0.25}
    found.file.close()


def test_room_is_spaces_until_it_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with GgufWriter(path, TENSORS, METADATA, {"first": 3, "second": 40}):
        pass
    for text in ("x" * 40, "é" * 20, "short"):
        with GgufWriter(path, TENSORS, METADATA, {"first": 3, "second": 40}) as writer:
            writer.fill("second", text)
            with pytest.raises(
                ConfigError, match="second needs 41 bytes; the file has room for 40"
            ):
                writer.fill("second", "x" * 41)
        found = read_gguf(path)
        assert found.metadata["second"] == text.ljust(40 - len(text.encode()) + len(text))
        assert found.metadata["first"] == "   "
        found.file.close()


def test_what_gguf_cannot_hold_is_refused(tmp_path: Path) -> None:
    for value in (1 << 64, np.zeros(2, np.complex64), np.zeros((2, 2)), None, np.float16(1)):
        with pytest.raises(TypeError):
            make_value(value)
    with pytest.raises(ConfigError, match="up to 63 bytes"):
        GgufWriter(tmp_path / "x", [GgufTensor("n" * 64, "f32", (1,))], {})
