"""Servers that share blocks of the prefix cache: each has a directory, and a copy of the secret."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from http_server import Running, started

SMALL = ("--threads", "1", "--max-model-len", "256", "--memory-limit", "2GiB")


def write_secret(path: Path, secret: bytes) -> Path:
    path.write_bytes(secret)
    path.chmod(0o600)
    return path


@contextmanager
def serving(folder: Path, name: str, secret: bytes, *words: str) -> Iterator[Running]:
    file = write_secret(folder / f"{name}.secret", secret)
    shared = ("--prefix-cache-dir", str(folder / name), "--prefix-cache-secret-file", str(file))
    with started(*SMALL, *shared, *words) as running:
        yield running


def find_address(running: Running) -> str:
    """Where a server has its blocks."""
    [line] = [line for line in running.said if "peers may fetch blocks" in line]
    return re.search(r"127\.0\.0\.1:\d+", line)[0]  # type: ignore[index]
