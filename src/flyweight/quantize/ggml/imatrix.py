"""Importance matrices in llama.cpp's files: the mean square of every input of a matrix, over a
calibration text.

Invariant: every count and length is checked against the file before it is used, and no value is
negative or not finite.  Two formats (facts from llama.cpp's tools/imatrix):

- GGUF, `general.type` = "imatrix": per tensor NAME a float32 NAME.in_sum2 [M, K], the sums of
  squares for M matrices (experts; else 1), and NAME.counts [M], how many rows were summed;
  `imatrix.datasets`, `imatrix.chunk_count`, `imatrix.chunk_size`;
- the older binary one: int32 count of entries; each with int32 length, name, int32 calls, int32
  count of values, float32 values (means times calls); then int32 chunks, int32 length, data set.
  It does not say how many matrices share an entry, nor how many rows were summed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.quantize.ggml.container import GgufTensor, GgufWriter
from flyweight.validation.strings import Strings
from flyweight.validation.untrusted import shown
from flyweight.weights.gguf import MAGIC, GgufFile, read_gguf
from flyweight.weights.mapped import MappedFile
from flyweight.wire import F32

SUMS, COUNTS = ".in_sum2", ".counts"
MOST_ENTRIES = 1 << 20
LONGEST = 1 << 12  # bytes of a tensor's name, or of a data set's
TYPE, DATASETS = "general.type", "imatrix.datasets"
CHUNKS, CHUNK_SIZE = "imatrix.chunk_count", "imatrix.chunk_size"


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """Of one GGUF tensor: `sums` of squares of its inputs, float32 [M, K] (M matrices in it; files
    of the older format have all in one row), and `counts` [M], the rows that were summed.
    """

    sums: F32
    counts: F32

    def find_means(self, shape: tuple[int, ...]) -> F32:
        """[M, K] mean squares for a tensor of this shape [..., N, K]; ones for matrices that no
        row reached.  ValueError where it does not fit.
        """
        matrices = 1 if len(shape) < 3 else int(np.prod(shape[:-2]))
        if self.sums.size != matrices * shape[-1]:
            raise ValueError(
                f"{self.sums.size} values for {matrices} matrices of {shape[-1]} columns"
            )
        sums = self.sums.reshape(matrices, shape[-1])
        counts = np.broadcast_to(self.counts, (matrices,))[:, None]
        means: F32 = np.divide(sums, counts, out=np.ones_like(sums), where=counts > 0)
        return means


@dataclass(frozen=True, slots=True)
class ImportanceFile:
    """`matrices` by GGUF's tensor names (`blk.0.attn_q.weight`), and what they were made from."""

    matrices: Mapping[str, ImportanceMatrix]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = 0
    where: str = field(default="", compare=False)

    def find(self, name: str, shape: tuple[int, ...]) -> F32 | None:
        """[M, K] for a tensor, or None where there is nothing; `CheckpointError` for another
        model's.
        """
        found = self.matrices.get(name)
        if found is None:
            return None
        try:
            return found.find_means(shape)
        except ValueError as error:
            raise CheckpointError(
                f"{self.where}: the importance of {name} is another model's: {error}"
            ) from None


def read_imatrix(path: Path) -> ImportanceFile:
    """Either format.  Raises `CheckpointError`."""
    file = MappedFile(path)
    try:
        is_gguf = file.copy(0, min(4, file.size), "the magic number") == MAGIC
        return _read_gguf(path) if is_gguf else _Legacy(file).read()
    finally:
        file.close()


def write_imatrix(path: Path, found: ImportanceFile) -> None:
    """GGUF, or the older format where the name ends in .dat; under its final name when whole."""
    work = path.with_name(f"{path.name}.partial")
    if path.suffix == ".dat":
        work.write_bytes(_make_legacy(found))
    else:
        _write_gguf(work, found)
    work.replace(path)


def _read_gguf(path: Path) -> ImportanceFile:
    gguf = read_gguf(path)
    try:
        kind = gguf.metadata.get(TYPE)
        if kind != "imatrix":
            said = "is missing" if kind is None else f"= {shown(kind)}"
            raise CheckpointError(f"{path}: {TYPE} {said}; an importance matrix says imatrix")
        matrices = {}
        for name in gguf.spans:
            if name.endswith(SUMS):
                stem = name.removesuffix(SUMS)
                matrices[stem] = _read_matrix(gguf, stem)
            elif not name.endswith(COUNTS) or name.removesuffix(COUNTS) + SUMS not in gguf.spans:
                raise CheckpointError(f"{path}: tensor {shown(name)} belongs to no {SUMS}")
        datasets = gguf.metadata.get(DATASETS, ())
        return ImportanceFile(
            matrices,
            tuple(datasets) if isinstance(datasets, Strings) else (),
            _read_whole(gguf, CHUNKS),
            _read_whole(gguf, CHUNK_SIZE),
            str(path),
        )
    finally:
        gguf.file.close()


def _read_whole(gguf: GgufFile, key: str) -> int:
    value = gguf.metadata.get(key, 0)
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise CheckpointError(f"{gguf.file.path}: {key} = {shown(value)}; a whole number expected")
    return value


def _read_matrix(gguf: GgufFile, stem: str) -> ImportanceMatrix:
    path = gguf.file.path
    sums, counts = gguf.spans[stem + SUMS], gguf.spans.get(stem + COUNTS)
    if counts is None:
        raise CheckpointError(f"{path}: {shown(stem)} has {SUMS} without {COUNTS}")
    matrices = 1 if len(sums.shape) == 1 else sums.shape[0]
    total = int(np.prod(counts.shape))
    if len(sums.shape) > 2 or total != matrices or {sums.kind, counts.kind} != {"f32"}:
        raise CheckpointError(
            f"{path}: {shown(stem)}: {sums.kind} sums {list(sums.shape)} with {counts.kind} counts "
            f"{list(counts.shape)}; f32 [M, K] and [M, 1] expected"
        )
    found = [
        np.frombuffer(gguf.file.copy(span.offset, span.nbytes, stem), "<f4").astype(np.float32)
        for span in (sums, counts)
    ]
    for values, what in zip(found, (SUMS, COUNTS), strict=True):
        _check(values, f"{path}: {shown(stem + what)}")
    return ImportanceMatrix(found[0].reshape(matrices, -1), found[1])


def _check(values: F32, where: str) -> None:
    if not (np.isfinite(values).all() and (values >= 0).all()):
        bad = values[~(np.isfinite(values) & (values >= 0))][0]
        raise CheckpointError(f"{where} has the value {bad}; finite ones, 0 or more, expected")


class _Legacy:
    """Reads the older format forward, every count against what is left."""

    def __init__(self, file: MappedFile) -> None:
        self._file, self._at = file, 0

    def read(self) -> ImportanceFile:
        count = self._take_whole("the count of entries", MOST_ENTRIES, least=12)
        if count == 0:
            raise self._fail("has no entries: this is not an importance matrix")
        matrices: dict[str, ImportanceMatrix] = {}
        for i in range(count):
            name = self._take_text(f"the name of entry {i}")
            if not name or name in matrices:
                raise self._fail(f"entry {i} is named {shown(name)}, which is empty or twice there")
            calls = self._take_whole(f"{shown(name)}: calls", 2**31 - 1)
            size = self._take_whole(f"{shown(name)}: values", 2**31 - 1, least=4)
            if size == 0:
                raise self._fail(f"{shown(name)} has no values")
            raw = np.frombuffer(self._take(4 * size, shown(name)), "<f4").astype(np.float32)
            _check(raw, f"{self._file.path}: {shown(name)}")
            counts = np.array([max(calls, 1)], np.float32)
            matrices[name] = ImportanceMatrix(raw.reshape(1, -1), counts)
        chunks = 0
        datasets: tuple[str, ...] = ()
        if self._at < self._file.size:  # files before 2024 end here
            chunks = self._take_whole("chunks", 2**31 - 1)
            name = self._take_text("the data set")
            datasets = (name,) if name else ()
        if self._at != self._file.size:
            raise self._fail(f"{self._file.size - self._at} bytes follow its end")
        return ImportanceFile(matrices, datasets, chunks, 0, str(self._file.path))

    def _take(self, count: int, what: str) -> bytes:
        found = self._file.copy(self._at, count, what)
        self._at += count
        return found

    def _take_whole(self, what: str, most: int, least: int = 0) -> int:
        """A number up to `most`, of things of at least `least` bytes that follow."""
        value = int.from_bytes(self._take(4, what), "little", signed=True)
        left = self._file.size - self._at
        if not 0 <= value <= most or value * least > left:
            raise self._fail(f"{what} = {value} cannot be true: {left} bytes are left")
        return value

    def _take_text(self, what: str) -> str:
        raw = self._take(self._take_whole(what, LONGEST, least=1), what)
        return raw.decode("utf-8", "replace")

    def _fail(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path}: {message}")


def _write_gguf(path: Path, found: ImportanceFile) -> None:
    tensors: dict[str, tuple[GgufTensor, bytes]] = {}
    for name, matrix in sorted(found.matrices.items()):
        for suffix, values in ((SUMS, matrix.sums), (COUNTS, matrix.counts.reshape(-1, 1))):
            shape = values.shape if len(values) > 1 else values.shape[1:]
            tensor = GgufTensor(name + suffix, "f32", shape)
            tensors[tensor.name] = tensor, values.astype("<f4").tobytes()
    metadata = {
        TYPE: "imatrix",
        DATASETS: list(found.datasets),
        CHUNKS: found.chunks,
        CHUNK_SIZE: found.chunk_size,
    }
    path.unlink(missing_ok=True)
    with GgufWriter(path, (tensor for tensor, _ in tensors.values()), metadata) as writer:
        for name, (_, raw) in tensors.items():
            writer.write(name, raw)
        writer.sync()


def _make_legacy(found: ImportanceFile) -> bytes:
    out = pack("<i", len(found.matrices))
    for name, matrix in sorted(found.matrices.items()):
        calls = max(1, found.chunks)
        means = matrix.find_means((len(matrix.counts), 1, matrix.sums.size // len(matrix.counts)))
        raw = name.encode()
        out += pack("<i", len(raw)) + raw + pack("<ii", calls, means.size)
        out += (means * np.float32(calls)).astype("<f4").tobytes()
    dataset = (found.datasets[-1] if found.datasets else "").encode()
    return out + pack("<ii", found.chunks, len(dataset)) + dataset
