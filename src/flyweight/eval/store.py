"""A model's log-probabilities of every token of the vocabulary, in a file: several candidates are
compared with one run.

The file: MAGIC, the header's length (4 bytes) and its JSON, the rows in any order, their index.  A
row is V float16 numbers: their low bytes as they are, then their high bytes, compressed by zlib.

Invariant: a file under its final name is whole.  A row that is read is normalised again, so what
rounding to float16 does to a divergence is of second order.  Knows no model.
"""

import json
import os
import shutil
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError, ConfigError
from flyweight.wire import F32, I64

MAGIC = b"flyweight logits 1\n"
PARTIAL = ".partial"
LONGEST_HEADER = 1 << 20
INDEX = np.dtype([("offset", "<u8"), ("size", "<u4"), ("best", "<u4")])
NUMBERS = {"context", "stride", "tokens", "vocab"}  # fields of the header; the others are texts
LEAST = -65504.0  # of float16
BOUND = 0.8  # of a row's float16 bytes, about what compression leaves


@dataclass(frozen=True, slots=True)
class StoreHeader:
    """What a file's rows are of: the model's fingerprint, and what its windows were made of."""

    model: str
    fingerprint: str
    text: str
    text_sha256: str
    context: int
    stride: int
    tokens: int
    tokens_sha256: str
    vocab: int
    activations: str
    kv_cache_dtype: str

    def check(self, wanted: "StoreHeader", path: Path) -> None:
        """Raises `ConfigError` where something else is wanted."""
        for name in (known.name for known in fields(self) if known.name not in ("model", "text")):
            ours, theirs = getattr(wanted, name), getattr(self, name)
            if ours != theirs:
                what = "is of another model" if name == "fingerprint" else "does not match"
                raise ConfigError(
                    f"{what}: its {name} is {theirs}, needed: {ours}",
                    "logits",
                    value=str(path),
                    hint="make it again with --save",
                )


def normalize(logits: F32) -> F32:
    """Log-probabilities [R, V] of logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    found: F32 = np.maximum(shifted - np.log(total).astype(np.float32), LEAST)
    return found


class StoreWriter:
    """Takes rows as they come; `finish` gives the file its name."""

    def __init__(self, path: Path, header: StoreHeader) -> None:
        self.path, self.partial = path, path.with_name(path.name + PARTIAL)
        try:
            check_replaceable(path)
            check_space(path, header)
            self.index: NDArray[np.void] = np.zeros(header.tokens, INDEX)
            self._file: BinaryIO = self.partial.open("wb")
            text = json.dumps(asdict(header)).encode()
            self._file.write(MAGIC + len(text).to_bytes(4, "little") + text)
        except OSError as error:
            raise self._refuse(error) from None

    def take(self, first: int, logits: F32) -> None:
        """Rows of the tokens from `first` on."""
        best = logits.argmax(axis=-1)
        halves = normalize(logits).astype("<f2").view(np.uint8)
        try:
            for i, row in enumerate(halves):
                data = row[::2].tobytes() + zlib.compress(row[1::2].tobytes(), 1)
                self.index[first + i] = self._file.tell(), len(data), best[i]
                self._file.write(data)
        except OSError as error:
            raise self._refuse(error) from None

    def finish(self) -> None:
        assert self.index["size"].all(), "a row is missing"
        try:
            self._file.write(self.index.tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self.partial.replace(self.path)
        except OSError as error:
            raise self._refuse(error) from None

    def discard(self) -> None:
        """Removes what is not finished; nothing where it is."""
        self._file.close()
        self.partial.unlink(missing_ok=True)

    def _refuse(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot be written: {error.strerror}", "save", value=str(self.path))


def check_replaceable(path: Path) -> None:
    """Raises `ConfigError` where another kind of file, a model perhaps, has the name."""
    if not path.exists():
        return
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ConfigError(
                "exists and is not a file of log-probabilities",
                "save",
                value=str(path),
                hint="choose another name",
            )


def check_space(path: Path, header: StoreHeader) -> None:
    """Raises `ConfigError` where the disk is too full for the rows."""
    need = int(header.tokens * header.vocab * 2 * BOUND)
    free = shutil.disk_usage(path.parent).free
    if need > free:
        raise ConfigError(
            f"needs about {need} bytes for {header.tokens} tokens; {free} are free",
            "save",
            value=str(path),
            hint=f"nearest valid: limit_tokens = {int(header.tokens * free / need)}",
        )


class StoreReader:
    """A file of rows, checked against its size; raises `CheckpointError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from None
        if self._file.read(len(MAGIC)) != MAGIC:
            raise CheckpointError(f"{path}: not a file of log-probabilities (eval kld --save)")
        length = int.from_bytes(self._file.read(4), "little")
        if length > LONGEST_HEADER:
            raise self._damaged("header")
        self.header = self._read_header(self._file.read(length))
        start = self._file.tell()
        stop = size - self.header.tokens * INDEX.itemsize
        if start > stop:
            raise self._damaged("index")
        self._file.seek(stop)
        self.index = np.frombuffer(self._file.read(), INDEX)
        begins, ends = self.index["offset"], self.index["offset"] + self.index["size"]
        if ((begins < start) | (begins > stop) | (ends > stop)).any():
            raise self._damaged("index")

    def read(self, first: int, count: int) -> F32:
        """Log-probabilities [count, V] of the tokens from `first` on."""
        vocab = self.header.vocab
        halves = np.empty((count, vocab, 2), np.uint8)
        for i, (offset, size, _) in enumerate(self.index[first : first + count].tolist()):
            self._file.seek(offset)
            data = self._file.read(size)
            unpack = zlib.decompressobj()
            try:
                high = unpack.decompress(data[vocab:], vocab)
            except zlib.error:
                raise self._damaged(f"row {first + i}") from None
            if len(data) < vocab or len(high) != vocab:
                raise self._damaged(f"row {first + i}")
            halves[i, :, 0] = np.frombuffer(data, np.uint8, vocab)
            halves[i, :, 1] = np.frombuffer(high, np.uint8)
        rows = halves.view("<f2")[..., 0].astype(np.float32)
        if not np.isfinite(rows).all():
            raise self._damaged(f"row {first} or one of the next {count - 1}")
        return normalize(rows)

    def list_best(self, first: int, count: int) -> I64:
        """The most likely token of each row."""
        return self.index["best"][first : first + count].astype(np.int64)

    def close(self) -> None:
        self._file.close()

    def _read_header(self, text: bytes) -> StoreHeader:
        try:
            found: dict[str, Any] = json.loads(text)
            header = StoreHeader(**found)
        except (ValueError, TypeError):
            raise self._damaged("header") from None
        for name, value in asdict(header).items():
            if name in NUMBERS:
                sound = type(value) is int and 0 < value < 1 << 40
            else:
                sound = isinstance(value, str)
            if not sound:
                raise self._damaged("header")
        return header

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: the {what} is damaged")
