"""A GGUF model of one file or of several: gguf-split makes NAME-00001-of-00003.gguf and so on.

Invariant: opening any part opens all, in order, or says by name which are missing; no tensor is in
two parts, and all the tensors the parts promise are there. The first part's metadata is the
model's. Does not know what tensors mean.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import BlockRows
from flyweight.validation.untrusted import shown
from flyweight.weights.formats import Rows
from flyweight.weights.gguf import GgufFile, read_gguf
from flyweight.weights.tensorinfo import Span

PART = re.compile(r"(?s)(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
MOST_PARTS = 4096  # files held open at once
NAMED = 5


@dataclass(frozen=True, slots=True)
class GgufParts:
    """The files, in order; spans say which one they lie in."""

    files: tuple[GgufFile, ...]
    spans: Mapping[str, Span]

    @property
    def metadata(self) -> dict[str, object]:
        return self.files[0].metadata

    def rows(self, name: str, span: Span, start: int, stop: int) -> Rows:
        return self.files[span.part].file.rows(name, span, start, stop)

    def blocks(self, name: str, span: Span, start: int, stop: int) -> BlockRows:
        return self.files[span.part].file.blocks(name, span, start, stop)

    def digest(self) -> str:
        """Hash of the metadata, the tensor tables, the sizes and samples of the data; paths and
        times do not count.
        """
        if len(self.files) == 1:
            return blake2b(
                self.files[0].file.digest(self.files[0].data), digest_size=16
            ).hexdigest()
        found = b"".join(part.file.digest(part.data) for part in self.files)
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
    """Where the parts of the model lie that `path` is one of."""
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
