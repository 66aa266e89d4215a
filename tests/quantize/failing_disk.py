"""A disk that breaks at one of a job's writes, for tests."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WRITES = ("pwrite", "fsync", "rename", "replace", "posix_fallocate", "mkdir", "unlink", "rmdir")


class Killed(BaseException):
    """In place of the end of the process: what is in the files is the same."""


class Disk:
    """Counts what is written, and breaks at one place: half of the bytes of a write are there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.error = 0, -1, Killed()
        for module, name in [*((os, name) for name in WRITES), (shutil, "copyfile")]:
            monkeypatch.setattr(module, name, self._watch(getattr(module, name)))

    def _watch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **words: Any) -> Any:
            self.count += 1
            if self.count - 1 != self.at:
                return call(*args, **words)
            if call.__name__ == "pwrite":
                call(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
            raise self.error

        return watched

    def fail(self, at: int, error: BaseException) -> None:
        self.count, self.at, self.error = 0, at, error


def read_files(out: Path) -> dict[str, bytes]:
    files = [out] if out.is_file() else sorted(out.iterdir())
    return {file.name if out.is_dir() else "": file.read_bytes() for file in files}
