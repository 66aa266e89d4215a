"""Reads a model's quality passport, and writes one: into the metadata of a GGUF file, or next to a
folder's config.json.

Invariant: a file under its own name is whole, the old one or the new one, whenever the process is
ended.  The bytes of tensors are copied unchanged.  Measures nothing.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from flyweight.errors import CheckpointError, ConfigError
from flyweight.passport import FILE, KEY, MOST_BYTES, UNKNOWN, Passport, Quality
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.gguf import GgufFile, make_header, make_string_entry, read_gguf
from flyweight.weights.ggufmodel import GgufParts

CHUNK = 8 << 20  # bytes copied at once
PARTIAL = ".partial"


def read_quality(checkpoint: Checkpoint) -> Quality:
    """What the model's passport says; one that cannot be read, or is of other weights, is none."""
    try:
        text = checkpoint.read_passport()
    except CheckpointError as error:
        return Quality(problem=f"the passport is damaged: {error}")
    where = str(checkpoint.passport_path)
    return Quality.of(text, where, lambda: checkpoint.fingerprint)


def find_quality(path: Path) -> Quality:
    """The same of a model that is not open, of any that has a passport; a model that cannot be
    opened has none.
    """
    if path.is_dir() and not (path / FILE).exists():
        return UNKNOWN
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return UNKNOWN
    try:
        return read_quality(checkpoint)
    finally:
        checkpoint.close()


def write_passport(model: Path, passport: Passport) -> Path:
    """Writes the passport of a model (a GGUF file, all its parts, or a folder) and returns the file
    it is in.  One that is there is replaced; a link stays one.  Raises `CheckpointError`, and
    `ConfigError` where the file cannot be written or the passport is of other weights.
    """
    checkpoint = open_checkpoint(model)
    try:
        path, fingerprint = checkpoint.passport_path, checkpoint.fingerprint
    finally:
        checkpoint.close()
    if passport.fingerprint != fingerprint:
        raise ConfigError("changed since it was measured", "model", value=str(model))
    real = path.resolve()
    if checkpoint.format == "gguf":
        rewrite_gguf(real, passport)
    else:
        text = passport.to_json().encode()
        with replace_file(real, len(text)) as file:
            file.write(text)
    return path


def rewrite_gguf(path: Path, passport: Passport) -> None:
    """Writes a GGUF file again with the passport as its last key."""
    gguf = read_gguf(path)
    try:
        header = make_header(gguf, KEY, make_string_entry(KEY, passport.to_json()))
        rest = gguf.file.size - gguf.data
        with replace_file(path, len(header) + rest) as new, path.open("rb") as old:
            new.write(header)
            old.seek(gguf.data)
            shutil.copyfileobj(old, new, CHUNK)
            new.flush()
            check_copy(gguf, Path(new.name))
    finally:
        gguf.file.close()


def check_copy(old: GgufFile, path: Path) -> None:
    """Raises `CheckpointError` unless the new file is the old one except for its passport."""
    new = read_gguf(path)
    try:
        digests = {GgufParts((one,), one.spans).compute_digest() for one in (old, new)}
        if len(digests) > 1 or new.file.size - new.data != old.file.size - old.data:
            raise CheckpointError(f"{old.file.path}: changed while it was copied; nothing written")
    finally:
        new.file.close()


def check_place(checkpoint: Checkpoint) -> None:
    """Raises `ConfigError` where a passport could not be written: before minutes of measuring."""
    path = checkpoint.passport_path.resolve()
    if not os.access(path.parent, os.W_OK):
        raise ConfigError("cannot be written: Permission denied", "model", value=str(path))
    check_room(path, path.stat().st_size + MOST_BYTES if path.exists() else MOST_BYTES)


def check_room(path: Path, size: int) -> None:
    """Raises `ConfigError` where the disk has no room for a new file of `size` bytes."""
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise ConfigError(
            f"needs {size} bytes next to it while it is written; {free} are free",
            "model",
            value=str(path),
        )


@contextmanager
def replace_file(path: Path, size: int) -> Iterator[BinaryIO]:
    """A new file of `size` bytes, which takes the name and the mode of the old one once the block
    ends, and is removed where it fails.  Raises `ConfigError`.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        check_room(path, size)
        with partial.open("wb") as file:
            yield file
            file.flush()
            if path.exists():
                partial.chmod(stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror}", "model", value=str(path)
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Puts a new name on the disk, where folders can be synced."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
