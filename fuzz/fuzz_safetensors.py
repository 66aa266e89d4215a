"""Fuzz target: a folder with a safetensors model, opened, its family looked up, and every tensor
read.

The first byte of an input says which part of an otherwise honest folder the rest of it is.
"""

from collections.abc import Iterator
from itertools import compress
from pathlib import Path

import numpy as np

from filewriters import encode, safetensors_bytes, write_folder
from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.passport import FILE
from flyweight.weights.checkpoint import open_checkpoint

CONFIG, GENERATION = "config.json", "generation_config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
STRANGERS = ("pytorch_model.bin", "model.gguf", "config.json.bak")
NAMES = (CONFIG, GENERATION, SINGLE, INDEX, *SHARDS, *STRANGERS, FILE)
HEADER, PRESENT = 1, 2  # a header without its length, then data; which files there are
PARTS = {0: SINGLE, 3: INDEX, 4: CONFIG, 5: GENERATION, 6: FILE}
MODEL = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
}


class Target:
    COVERED = ("weights/safetensors.py", "weights/folder.py")

    def __init__(self, folder: Path) -> None:
        """Keeps every file a folder may have, by name; the folder itself stays empty."""
        self.folder = folder
        rng = np.random.default_rng(1)
        x = rng.standard_normal((1, 2)).astype(np.float32)
        tensors = {"a": encode(x, "f32"), "b": encode(x[0], "f16"), "c": encode(x, "bf16")}
        for shards in (1, 2):
            write_folder(folder, MODEL, tensors, shards)
        (folder / GENERATION).write_text('{"eos_token_id": [1, 2]}')
        for name in (*STRANGERS, FILE):
            (folder / name).write_bytes(b"?")
        self.honest = {name: (folder / name).read_bytes() for name in NAMES}
        for name in NAMES:
            (folder / name).unlink()

    def seeds(self) -> Iterator[bytes]:
        for code, name in PARTS.items():
            yield bytes([code]) + self.honest[name]
        whole = self.honest[SINGLE]
        data = 8 + int.from_bytes(whole[:8], "little")
        yield bytes([HEADER]) + whole[8:data] + b"\0" + whole[data:]
        for entry in (
            b'{"dtype":"F32","shape":[],"data_offsets":[0,4]}',
            b'{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}',
            b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":'
            b'{"dtype":"F32","shape":[0],"data_offsets":[4,4]}',
        ):
            yield bytes([HEADER]) + b'{"a":' + entry + b"}\0" + bytes(4)
        pair = (
            b'{"a_blocks":{"dtype":"U8","shape":[1,1,1,16],"data_offsets":[0,16]},'
            b'"a_scales":{"dtype":"U8","shape":[1,1,1],"data_offsets":[16,17]}}'
        )
        yield bytes([HEADER]) + pair + b"\0" + bytes(17)
        for present in ((CONFIG, SINGLE), (CONFIG, GENERATION, INDEX, *SHARDS)):
            mask = sum(1 << NAMES.index(name) for name in present)
            yield bytes([PRESENT]) + mask.to_bytes(2, "little")

    def execute(self, data: bytes) -> bool:
        """Whether the folder is a model."""
        files = self._files(data)
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        try:
            alone = SINGLE in files and read(self.folder / SINGLE)
            return read(self.folder) or alone
        finally:
            for name in files:
                (self.folder / name).unlink()

    def _files(self, data: bytes) -> dict[str, bytes]:
        """The folder an input represents."""
        code, rest = data[0] if data else 0, data[1:]
        if code == PRESENT:
            mask = int.from_bytes(rest[:2], "little")
            present = compress(NAMES, (mask >> i & 1 for i in range(len(NAMES))))
            return {name: self.honest[name] for name in present}
        if code == HEADER:
            header, _, values = rest.partition(b"\0")
            rest = safetensors_bytes(header, values)
        part = PARTS.get(code, SINGLE)
        names = (CONFIG, *SHARDS) if part == INDEX else (CONFIG, SINGLE)
        return {name: self.honest[name] for name in names} | {part: rest}


def read(path: Path) -> bool:
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return False
    try:
        assert len(checkpoint.fingerprint) == 32
        assert all(len(one) == 32 for one in checkpoint.compute_digests())
        assert bool(checkpoint.schemes) == bool(checkpoint.joined)
        assert checkpoint.format == "safetensors" and checkpoint.stamps
        assert isinstance(checkpoint.quantisation, str)
        assert 0 <= checkpoint.opened <= len(checkpoint.tensors) >= len(checkpoint.joined)
        checkpoint.read_passport()
        for name, info in checkpoint.tensors.items():
            checkpoint.read(name, 0, info.shape[0] if info.shape else 1)
        find_family(checkpoint.config).read_spec(checkpoint.config)
        return True
    except CheckpointError:  # a shape no family has
        return False
    finally:
        checkpoint.close()
