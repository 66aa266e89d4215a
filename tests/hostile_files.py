"""Checks that the readers of model files share: a hostile file is refused in one line, or read
without taking more memory than it has bytes for.
"""

import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from flyweight.errors import CheckpointError
from flyweight.weights.formats import FORMATS

Read = Callable[[Path], Any]  # of a file's header, such as `read_gguf`


def refusal(read: Read, path: Path, content: bytes) -> str:
    """What a reader says of a file with this content: one short line that names the file."""
    path.write_bytes(content)
    return refusal_of(read, path)


def refusal_of(read: Read, path: Path) -> str:
    """The same of a file that exists already."""
    with pytest.raises(CheckpointError) as error:
        read(path)
    message = str(error.value)
    assert str(path) in message and message.isprintable() and len(message) < 600
    return message


def check_no_file(read: Read, folder: Path) -> None:
    """A folder, a missing file and a pipe are refused."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("folder", "missing", "pipe"):
        refusal_of(read, folder / name)


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Fails where the block allocates `limit` bytes or more at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def check_damaged(
    read: Read, path: Path, honest: bytes, data: st.DataObject, front: int | None = None
) -> None:
    """Cuts a file and changes up to 4 of its bytes, of the first `front`: it is refused, or all its
    tensors can be read, in less than 1 MiB.
    """
    raw = bytearray(honest[: data.draw(st.integers(1, len(honest)) | st.just(len(honest)))])
    places = st.integers(0, min(len(raw), front or len(raw)) - 1)
    for at in data.draw(st.lists(places, max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with memory_below(1 << 20):
        try:
            found = read(path)
            for name, span in found.spans.items():
                if span.kind in FORMATS:
                    found.file.read_rows(name, span, 0, (span.shape or (1,))[0])
        except CheckpointError:
            pass
