"""Fuzz target: a folder with a PyTorch model, opened, its family looked up, and every tensor read.

The first byte of an input says how the rest becomes pytorch_model.bin: as it is, as the pickle of
an archive or of the older format, or as an archive's directory.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fuzz_safetensors import MODEL

from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS
from torchwriter import archive, state, storage, stream, tensor

FILE, PICKLE, OLD_PICKLE, DIRECTORY = range(4)
KINDS = {"0": ("FloatStorage", 4, 8), "1": ("HalfStorage", 2, 4), "2": ("BFloat16Storage", 2, 6)}
HELD = {key: np.arange(size * count, dtype=np.uint8).tobytes()
        for key, (_, size, count) in KINDS.items()}  # fmt: skip


def items(last: bytes = b"") -> dict[str, bytes]:
    """A tensor of each storage, one inside another's, and one without elements."""
    of = {key: storage(kind, key, count, last) for key, (kind, _, count) in KINDS.items()}
    return {
        "a": tensor(of["0"], (2, 4)),
        "b": tensor(of["0"], (4,), offset=4),
        "c": tensor(of["1"], (2, 2)),
        "d": tensor(of["2"], (1, 2, 3)),
        "e": tensor(of["2"], (0, 3)),
        "f": tensor(of["1"], ()),
        "g": tensor(of["0"], (2, 4), (1, 2)),
    }


class Target:
    COVERED = ("weights/torchfile.py", "weights/opcodes.py", "weights/ziparchive.py")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pytorch_model.bin"
        (folder / "config.json").write_text(str(MODEL).replace("'", '"'))
        self.counts = {key: (count, HELD[key]) for key, (_, _, count) in KINDS.items()}
        self.honest = archive(state(items()), HELD)
        self.directory = self.honest.index(b"PK\x01\x02")

    def seeds(self) -> Iterator[bytes]:
        data = Path(__file__).parents[1] / "tests" / "data" / "torch"
        for path in sorted(data.glob("state-*.bin")):
            yield bytes([FILE]) + path.read_bytes()
        yield bytes([FILE]) + self.honest
        yield bytes([FILE]) + stream(state(items(b"N")), self.counts)
        yield bytes([PICKLE]) + state(items())
        yield bytes([OLD_PICKLE]) + state(items(b"N"))
        yield bytes([DIRECTORY]) + self.honest[self.directory :]

    def execute(self, data: bytes) -> bool:
        """Whether the folder is a model."""
        self.path.write_bytes(self._file(data))
        try:
            return read(self.path.parent)
        finally:
            self.path.unlink()

    def _file(self, data: bytes) -> bytes:
        code, rest = data[0] if data else FILE, data[1:]
        if code == PICKLE:
            return archive(rest, HELD)
        if code == OLD_PICKLE:
            return stream(rest, self.counts)
        return self.honest[: self.directory] + rest if code == DIRECTORY else rest


def read(path: Path) -> bool:
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return False
    try:
        assert len(checkpoint.fingerprint) == 32
        for name, info in checkpoint.tensors.items():
            if info.kind in FORMATS:
                shape = info.shape or (1,)
                checkpoint.read(name, 0, math.prod(shape[:-1]) if len(shape) > 1 else shape[0])
        find_family(checkpoint.config).read_spec(checkpoint.config)
        return True
    finally:
        checkpoint.close()
