"""Small block stores in a file, whose blocks' bytes follow from their keys."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b, shake_128
from pathlib import Path

import numpy as np

from flyweight.kv.records import OwnedFile, RecordFile
from flyweight.kv.store import BlockStore
from flyweight.wire import U8

SIZE = 100  # bytes of a block
FINGERPRINT = bytes(range(32))


def key_of(number: int) -> bytes:
    return blake2b(number.to_bytes(4, "little"), digest_size=32).digest()


def data_of(number: int, size: int = SIZE) -> U8:
    return np.frombuffer(shake_128(key_of(number)).digest(size), np.uint8)


@contextmanager
def opened(
    path: Path, most: int = 8, size: int = SIZE, fingerprint: bytes = FINGERPRINT
) -> Iterator[BlockStore]:
    """The store of at most so many blocks in a file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    file = RecordFile(OwnedFile(descriptor), size, fingerprint)
    store = BlockStore(file, lambda wanted: wanted <= file.count_bytes(most), "a test")
    try:
        yield store
    finally:
        store.close()


def save(store: BlockStore, number: int, parent: int = -1, depth: int = 0) -> bool:
    before = key_of(parent) if parent >= 0 else bytes(32)
    return store.save(key_of(number), before, depth, data_of(number, store.size))


def load(store: BlockStore, number: int) -> bool:
    """Whether the block is there; its bytes are checked."""
    out = np.zeros(store.size, np.uint8)
    if not store.load(key_of(number), out):
        return False
    assert (out == data_of(number, store.size)).all(), "the bytes of another block"
    return True
