"""A model in GGUF, of one file or of several, seen as a `Checkpoint`: names and metadata in Hugging
Face's vocabulary. gguf-split makes NAME-00001-of-00003.gguf and so on.

Invariant: opening any part opens all, in order, or says by name which are missing; no tensor is in
two parts, and all the tensors the parts promise are there. The first part's metadata is the
model's. Every tensor of the file appears in `tensors` (under its own name when the table has
none), so that none is ignored silently; rope_freqs alone becomes part of the config.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.passport import KEY
from flyweight.validation.untrusted import shown
from flyweight.weights import gguf_config, gguf_names
from flyweight.weights.formats import Rows
from flyweight.weights.formats.values import to_f32
from flyweight.weights.gguf import GgufFile, make_header, read_gguf
from flyweight.weights.tensorinfo import Span, TensorInfo
from flyweight.wire import F32

PART = re.compile(r"(?s)(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
MOST_PARTS = 4096  # files held open at once
NAMED = 5


@dataclass(frozen=True, slots=True)
class GgufParts:
    """The files, in order; spans say which one they are in."""

    files: tuple[GgufFile, ...]
    spans: Mapping[str, Span]

    @property
    def metadata(self) -> dict[str, object]:
        return self.files[0].metadata

    def read_rows(self, name: str, span: Span, start: int, stop: int) -> Rows:
        return self.files[span.part].file.read_rows(name, span, start, stop)

    def read_blocks(self, name: str, span: Span, start: int, stop: int) -> BlockRows:
        return self.files[span.part].file.read_blocks(name, span, start, stop)

    def compute_digest(self) -> str:
        """Hash of the metadata without a passport, the tensor tables, the sizes and samples of the
        data; paths and times do not count.
        """
        found = b"".join(
            part.file.compute_digest(part.data, make_header(part, KEY)) for part in self.files
        )
        return blake2b(found, digest_size=16).hexdigest()

    def close(self) -> None:
        for part in self.files:
            part.file.close()


def read_parts(path: Path) -> GgufParts:
    """The file, and if it is a part, all the others: headers only."""
    first = read_gguf(path)
    opened = [first]
    try:
        count = _read_number(first, "split.count", 0)
        if count <= 1:
            return GgufParts((first,), first.spans)
        paths = _list_paths(path, count)
        opened = [first if other == path else read_gguf(other) for other in paths]
        for number, part in enumerate(opened):
            _check(part, number, count)
        return GgufParts(tuple(opened), _unite_spans(opened))
    except CheckpointError:
        for part in opened:
            part.file.close()
        raise


def find_first_part(names: Iterable[str]) -> str:
    """The first part, if the names are the parts of one model; else ""."""
    found = sorted(names)
    parts = [PART.fullmatch(name) for name in found]
    same = {(part[1], part[3]) for part in parts if part}
    return found[0] if all(parts) and len(same) == 1 else ""


def _list_paths(path: Path, count: int) -> list[Path]:
    """The paths of all parts of the model that `path` is one of."""
    named = PART.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise CheckpointError(
            f"{path}: one of {count} parts of a model, which must be named "
            f"NAME-00001-of-{count:05d}.gguf and so on; give it its name back, "
            "or join the parts with gguf-split --merge"
        )
    paths = [path.with_name(f"{named[1]}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = [other for other in paths if not other.exists()]
    if missing:
        some = ", ".join(shown(other.name) for other in missing[:NAMED])
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise CheckpointError(
            f"{path}: {len(missing)} of the model's {count} parts missing: {some}{more}"
        )
    return paths


def _read_number(part: GgufFile, key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_PARTS:
        raise CheckpointError(
            f"{part.file.path}: {key} = {shown(value)}; a number from 0 to {MOST_PARTS} expected"
        )
    return value


def _check(part: GgufFile, number: int, count: int) -> None:
    """Holds a part's own word for what it is to its name."""
    for key, expected in (("split.no", number), ("split.count", count)):
        found = _read_number(part, key, 0)
        if found != expected:
            raise CheckpointError(
                f"{part.file.path}: {key} = {found}, but by its name it is {expected}"
            )


def _unite_spans(parts: list[GgufFile]) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    for number, part in enumerate(parts):
        for name, span in part.spans.items():
            if name in spans:
                other = parts[spans[name].part].file.path.name
                raise CheckpointError(
                    f"{part.file.path}: tensor {shown(name)} is in {shown(other)} too"
                )
            spans[name] = replace(span, part=number)
    promised = parts[0].metadata.get("split.tensors.count", len(spans))
    if promised != len(spans):
        raise CheckpointError(
            f"{parts[0].file.path}: its parts have {len(spans)} tensors; "
            f"split.tensors.count = {shown(promised)}"
        )
    return spans


LONGROPE = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}
ROPE_TENSORS = ("rope_freqs.weight", *LONGROPE)
ROW = "shared_expert_gate.weight"  # a matrix of one row, which converters write as a vector


class GgufCheckpoint:
    """A `Checkpoint` over one file, or over all the parts of which `path` is one."""

    converted = True
    quantisation = ""
    joined: frozenset[str] = frozenset()
    opened = 0
    schemes = ()
    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf = read_parts(path)
        try:
            self._describe(self._gguf, str(path))
        except CheckpointError:
            self.close()
            raise

    def _describe(self, gguf: GgufParts, where: str) -> None:
        arch = gguf_names.find_architecture(gguf.metadata, where)
        self.config = gguf_config.make_hf_config(gguf.metadata, gguf.spans, where)
        self.generation: dict[str, Any] = {}
        ends = gguf_config.find_end_ids(gguf.metadata, where)
        self.eos_ids = tuple(sorted(set(ends)))
        self._spans: dict[str, Span] = {}
        for name, span in gguf.spans.items():
            known = gguf_names.translate(arch, name)
            if known in self._spans:
                raise CheckpointError(
                    f"{where}: two tensors mean {shown(known)}, one of them {shown(name)}"
                )
            if known.endswith(ROW) and len(span.shape) == 1:
                span = replace(span, shape=(1, *span.shape))
            self._spans[known] = span
        self._read_rope_factors(where)
        self.tensors = {n: TensorInfo(n, s.shape, s.kind) for n, s in self._spans.items()}

    @property
    def tokenizer_source(self) -> Mapping[str, object]:
        return self._gguf.metadata

    @property
    def fingerprint(self) -> str:
        return self._gguf.compute_digest()

    @property
    def stamps(self) -> tuple[int, ...]:
        return tuple(part.file.stamp for part in self._gguf.files)

    def compute_digests(self) -> tuple[bytes, ...]:
        """Of every part."""
        return tuple(part.file.compute_whole_digest() for part in self._gguf.files)

    @property
    def passport_path(self) -> Path:
        return self._gguf.files[0].file.path

    def read_passport(self) -> bytes:
        found = self._gguf.metadata.get(KEY, "")
        text = found if isinstance(found, str) else shown(found)
        return text.encode("utf-8", "surrogateescape")

    def read(self, name: str, start: int, stop: int) -> Rows:
        return self._gguf.read_rows(name, self._spans[name], start, stop)

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        return self._gguf.read_blocks(name, self._spans[name], start, stop)

    def close(self) -> None:
        self._gguf.close()

    def _read_rope_factors(self, where: str) -> None:
        """Rope scaling worked out by the converter, one divisor for each frequency: Llama 3.x's,
        and the two lists of longrope.
        """
        found = {
            name: self._take_divisors(name, where) for name in ROPE_TENSORS if name in self._spans
        }
        add_rope_factors(self.config, found, where)

    def _take_divisors(self, name: str, where: str) -> F32:
        """The tensor's values, taken out of the model's tensors."""
        span = self._spans.pop(name)
        rows = None
        if len(span.shape) == 1:
            rows = self._gguf.read_rows(name, span, 0, span.shape[0])
        if rows is None or isinstance(rows, GroupedWeight):
            raise CheckpointError(
                f"{where}: {name} is {span.kind} {list(span.shape)}; a list of floats expected"
            )
        values = to_f32(rows)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise CheckpointError(f"{where}: {name} must be positive")
        return values


def add_rope_factors(config: dict[str, Any], found: Mapping[str, F32], where: str) -> None:
    """The rope scaling of a config, with the divisors that tensors of `ROPE_TENSORS` hold."""
    scaling = config.get("rope_scaling")
    if "rope_freqs.weight" in found:
        if scaling is None or scaling["rope_type"] in (None, "none"):
            scaling = {"rope_type": "linear", "factor": 1.0}
        if scaling["rope_type"] != "linear":
            raise CheckpointError(
                f"{where}: rope_freqs.weight with rope scaling of type "
                f"{shown(scaling['rope_type'])}; allowed: linear"
            )
        with np.errstate(over="ignore"):  # a family refuses what overflows
            factors = found["rope_freqs.weight"] * np.float32(scaling["factor"])
        config["rope_scaling"] = {"rope_type": "factors", "factors": factors.tolist()}
    elif found:
        if len(found) != 2:
            raise CheckpointError(f"{where}: {next(iter(found))} without its other half")
        lists = {known: found[name].tolist() for name, known in LONGROPE.items()}
        config["rope_scaling"] = {**(scaling or {}), "rope_type": "longrope", **lists}
    elif scaling and scaling["rope_type"] in (None, "none"):
        config["rope_scaling"] = None  # only what goes with longrope's lists
