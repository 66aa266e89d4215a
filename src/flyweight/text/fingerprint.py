"""A hash of what turns text into ids and back, messages into a prompt, and ends an answer.

Invariant: where it is equal, ids, texts, chat templates and stop tokens are.  Nothing else that a
model's files say is in it, and weights are not.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np

from flyweight.text.tokenizer import list_tokenizer_files
from flyweight.validation.strings import Strings

BYTES = 16


def compute_fingerprint(source: Path | Mapping[str, object], stop_ids: Iterable[int]) -> str:
    """Of a folder, or of GGUF's metadata (its `tokenizer.*` keys)."""
    parts = _read_keys(source) if isinstance(source, Mapping) else _read_files(source)
    found = blake2b(repr(sorted(stop_ids)).encode(), digest_size=BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _read_files(folder: Path) -> Iterator[bytes]:
    for path in list_tokenizer_files(folder):
        yield path.relative_to(folder).as_posix().encode()
        yield path.read_bytes()


def _read_keys(metadata: Mapping[str, object]) -> Iterator[bytes]:
    for key in sorted(metadata):
        if key.startswith("tokenizer."):
            yield key.encode("utf-8", "surrogateescape")
            yield from _read_value(metadata[key])


def _read_value(value: object) -> Iterator[bytes]:
    if isinstance(value, Strings):  # as the file has them: decoding 300,000 takes long
        yield (value.end - value.begin).tobytes()
        yield value.raw[value.begin[0] : value.end[-1]].tobytes() if len(value) else b""
    elif isinstance(value, np.ndarray):
        yield value.dtype.str.encode()
        yield value.tobytes()
    else:
        yield repr(value).encode("utf-8", "surrogateescape")
