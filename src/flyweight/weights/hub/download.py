"""Files of one revision into the Hub's cache, going on where an earlier download stopped.

The client keeps nothing of a download that was killed (each of its runs writes to a file of its
own).  So files the Hub knows a SHA-256 of are written here to `blobs/<sha256>.incomplete`, with the
client's own `http_get`, and the client then only links them.

Invariant: `blobs/<sha256>` has that SHA-256.  Plain HTTP; what is beyond its limit is left to the
client and its Xet.
"""

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from tqdm import tqdm

from flyweight import __version__
from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import one_line, shown
from flyweight.weights.hub.names import HubName

SHA256 = re.compile("[0-9a-f]{64}")
MOST_PLAIN = 50 * 1000**3  # bytes; the Hub serves longer files by Xet only


class DownloadListener(Protocol):
    """Receives the progress of a download."""

    def note(self, message: str) -> None: ...
    def show_download(self, file: str, done: int, total: int) -> None:
        """`done` of `total` bytes of everything that was missing."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository; `hash_file` is empty where the Hub does not say it."""

    name: str
    size: int
    sha256: str = ""


class Download:
    """One revision of one repository, `commit`, into `cache`."""

    def __init__(self, name: HubName, commit: str, cache: Path, tell: DownloadListener) -> None:
        self.name, self.commit, self.cache, self.tell = name, commit, cache, tell
        self.folder = cache / make_folder_name(name.repo)
        self.total = self.before = 0

    def path(self, file: str) -> Path:
        return self.folder / "snapshots" / self.commit / file

    def fetch(self, files: Sequence[RemoteFile]) -> None:
        """Every one of `files` that is not there yet."""
        missing = [file for file in files if not self.path(file.name).exists()]
        for file in missing:
            check_name(self.name, file.name)
        self.total, self.before = sum(file.size for file in missing), 0
        self._check_room(missing)
        with relay_warnings(self.tell):
            for file in missing:
                self._fetch(file)
                self.before += file.size
                self.tell.show_download(file.name, self.before, self.total)

    def remember(self, revision: str) -> None:
        """`revision` means this commit from now on: what is looked up offline.  Written last, so
        that it never names what is not whole.
        """
        if revision == self.commit:
            return
        ref = self.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(self.commit)

    def name_partial(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / f"{file.sha256}.incomplete"

    def _fetch(self, file: RemoteFile) -> None:
        from huggingface_hub import hf_hub_download

        bar = make_counter(lambda done: self._report(file, done))
        if file.sha256 and file.size <= MOST_PLAIN:
            self._resume(file, bar)
        at = hf_hub_download(
            self.name.repo,
            file.name,
            revision=self.commit,
            cache_dir=self.cache,
            tqdm_class=bar,
            library_name="flyweight",
            library_version=__version__,
        )
        if (size := Path(at).stat().st_size) != file.size:
            Path(at).resolve().unlink()
            Path(at).unlink()
            raise CheckpointError(
                f"{self.name}: {shown(file.name)} arrived with {size} bytes, not the {file.size} "
                "the Hub says; try again"
            )

    def _resume(self, file: RemoteFile, bar: type[Any]) -> None:
        """Brings `blobs/<sha256>` about.  A part from an earlier run may be damaged: then the whole
        file is fetched once more.
        """
        from huggingface_hub.utils import WeakFileLock

        blob, partial = self.folder / "blobs" / file.sha256, self.name_partial(file)
        lock = self.cache / ".locks" / self.folder.name / f"{file.sha256}.lock"
        for folder in (blob.parent, lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            while not blob.exists():
                begun = self._append(file, partial, bar)
                if hash_file(partial) == file.sha256:
                    partial.replace(blob)
                    return
                partial.unlink()
                what = f"{self.name}: {shown(file.name)} arrived damaged: its SHA-256 is wrong"
                if not begun:
                    raise CheckpointError(f"{what}; try again, or tell its owners")
                self.tell.note(f"{what}; fetching it from the start")

    def _append(self, file: RemoteFile, partial: Path, bar: type[Any]) -> int:
        """Gets what a partial file lacks; says how much was there."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        with open(partial, "ab", buffering=0) as out:
            begun = out.tell()
            if begun > file.size:
                out.truncate(begun := 0)
            if begun:
                self.tell.note(f"{file.name}: going on from {begun} of {file.size} bytes")
            http_get(
                hf_hub_url(self.name.repo, file.name, revision=self.commit),
                out,
                resume_size=begun,
                headers=build_hf_headers(library_name="flyweight", library_version=__version__),
                expected_size=file.size,
                displayed_filename=file.name,
                tqdm_class=bar,
            )
        return begun

    def _report(self, file: RemoteFile, done: int) -> None:
        self.tell.show_download(file.name, min(self.before + done, self.total), self.total)

    def _check_room(self, missing: Sequence[RemoteFile]) -> None:
        """A disk that is too small is better known at once."""
        have = sum(_measure_size(self.name_partial(file)) for file in missing if file.sha256)
        there = next(p for p in (self.cache, *self.cache.parents) if p.exists())
        free, needed = shutil.disk_usage(there).free, self.total - have
        if needed > free:
            raise CheckpointError(
                f"{self.name} needs {needed} more bytes in {self.cache}, where {free} are free; "
                "flyweight rm makes room, HF_HOME moves the cache"
            )


def make_folder_name(repo: str) -> str:
    """Of a repository in the client's cache."""
    return "models--" + repo.replace("/", "--")


def check_name(name: HubName, file: str) -> None:
    """A repository's file names are its owner's: none may lead out of the folder."""
    path = PurePosixPath(file)
    plain = file.isprintable() and "\\" not in file and str(path) == file
    if not plain or path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{name}: {shown(file)} is not a plain file name")


def hash_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_counter(heard: Callable[[int], None]) -> type[Any]:
    """What the client takes for a progress bar; `heard` gets the bytes of the file so far."""

    class DownloadCounter(tqdm):  # type: ignore[misc]
        def __init__(self, *_: Any, **given: Any) -> None:
            super().__init__(disable=True)
            self.done = int(given.get("initial") or 0)
            heard(self.done)

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            heard(self.done)

    return DownloadCounter


@contextmanager
def relay_warnings(tell: DownloadListener) -> Iterator[None]:
    """The client's warnings (a rate limit it waits for, a connection it tries again) as notes."""

    class ProgressRelay(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell.note(one_line(record.getMessage()))

    logger = logging.getLogger("huggingface_hub")
    before, spread = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [ProgressRelay(logging.WARNING)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before, spread


def _measure_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
