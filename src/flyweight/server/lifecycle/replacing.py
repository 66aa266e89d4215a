"""Replaces the replicas of a running server, so that they read the model's files again.

Invariant: nothing is replaced unless this machine's files have changed or a replica has others, and
they can be read and go with what the API server has read of those before.  One replacement at a
time; of several that wait, the newest alone.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flyweight.describe import ModelDescription, fingerprint_text
from flyweight.errors import ConfigError, FlyweightError
from flyweight.server.lifecycle.loading import ModelReader
from flyweight.server.model_directory import note_failure
from flyweight.server.model_entry import ModelEntry
from flyweight.server.observability.log import ServerLog
from flyweight.server.replicas.builds import ADAPTERS, fingerprint_adapters
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.replicas.reports import FILES, WEIGHTS, shorten
from flyweight.server.transport.errors import print_failure
from flyweight.weights.hub.names import SPLIT

MODEL = "fingerprint"  # the fact that other weights of the model change
UNLOADED = "the model is not loaded; a load reads its files"
SAME = "no file of the model has changed since replicas loaded it"
COPY = "copy the same files to every machine"
LOAD = "unload the model and load it, or restart the server"


def describe_files(found: ModelDescription) -> dict[str, Any]:
    """What engines report of a model's files, which are still open."""
    spec, text = found.spec, fingerprint_text(found)
    named = zip(FILES, (spec.vocab, spec.hidden, spec.context, text), strict=True)
    return dict(named) | {MODEL: found.checkpoint.fingerprint}


def check_files(files: Mapping[str, Any], facts: Mapping[str, Any], hint: str) -> None:
    """Raises `ConfigError` where one of `files`' facts is not that of engines."""
    for name, ours in files.items():
        if ours != facts[name]:
            raise ConfigError(
                f"the model's files here have {name} = {shorten(ours)}, the replicas' "
                f"{shorten(facts[name])}",
                hint=hint,
            )


def stamp_files(paths: Iterable[Path]) -> list[tuple[object, ...]]:
    """When which files were changed or put there; what is missing has no stamp."""
    found = list[tuple[object, ...]]()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            with suppress(OSError):
                seen = os.stat(file)
                times = seen.st_mtime_ns, seen.st_ctime_ns
                found.append((str(file), seen.st_ino, seen.st_size, *times))
    return found


class ReplicaUpdates:
    """`entry` is the model that all replicas have."""

    def __init__(
        self, host: ReplicaHost, entry: ModelEntry, reader: ModelReader, log: ServerLog
    ) -> None:
        self.host, self.entry, self.reader, self.log = host, entry, reader, log
        self._next: asyncio.Task[bool] | None = None  # the replacement that waits for the last one
        self._replacing = asyncio.Lock()
        self._loaded: list[tuple[object, ...]] | None = None  # stamps of what replicas have read

    async def reload(self) -> None:
        """As `replace`, for a signal: errors are in the log alone."""
        try:
            await self.replace()
        except FlyweightError:
            pass  # it is in the log
        except Exception as error:
            print_failure("the reload of replicas", error)

    async def replace(self) -> bool:
        """Whether replicas are replaced, as files have changed or a replica has others.  Those that
        run go on where the files cannot be used, or the cluster fails; raises the error then.
        Calls that wait for a replacement have one together, and it goes on without them.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._replace_in_turn())
            self._next.add_done_callback(note_failure)
        return await asyncio.shield(self._next)

    async def _replace_in_turn(self) -> bool:
        try:
            async with self._replacing:
                self._next = None  # a later one reads the files anew
                return await self._replace()
        except FlyweightError as error:
            self.log.event("replicas_unchanged", problem=error)
            raise
        except Exception as error:
            self.log.event("replicas_unchanged", problem=type(error).__name__)
            raise

    def note_files(self) -> None:
        """Replicas load the model: a later reload compares its files with those of now."""
        self._loaded = self._stamp()

    async def _replace(self) -> bool:
        if self.entry.model is None:
            raise ConfigError(UNLOADED)
        stamps = await asyncio.to_thread(self._stamp)
        if stamps == self._loaded and not self.host.unused:
            self.log.event("replicas_unchanged", reason=SAME)
            return False
        files = await asyncio.to_thread(self._read)
        weights = {name: files.pop(name) for name in WEIGHTS}
        check_files(files, self.entry.client.facts, LOAD)
        self.log.event("replicas_reloading", replicas=len(self.host.set.open))
        self._loaded = None  # where the cluster fails, it may have begun
        await self.host.replace(weights)
        self._loaded = stamps
        return True

    def _stamp(self) -> list[tuple[object, ...]]:
        """Of the model, its adapters and what drafts for it, as far as they are files here."""
        settings = self.entry.options.settings
        drafts = settings.speculation.options.get("model") if settings.speculation else None
        given = [*settings.adapters.values(), *([drafts] if drafts else [])]
        paths = [Path(one).expanduser() for one in given]
        assert self.entry.path is not None, "it was found"
        return stamp_files([self.entry.path, *list_parts(self.entry.path), *paths])

    def _read(self) -> dict[str, Any]:
        """Checks the files as at the start."""
        found = self.reader.describe(self.entry)
        try:
            adapters = fingerprint_adapters(self.entry.options.settings.adapters)
            return {**describe_files(found), ADAPTERS: adapters}
        finally:
            found.checkpoint.close()


def list_parts(model: Path) -> list[Path]:
    """What is read besides a file: those next to it, but for a GGUF file that is whole."""
    alone = model.is_dir() or (model.suffix == ".gguf" and not SPLIT.fullmatch(model.name))
    try:
        return [] if alone else sorted(one for one in model.parent.iterdir() if one.is_file())
    except OSError:  # it is read by name alone
        return []
