"""Replaces the replicas of a running server, so that they read the model's files again.

Invariant: nothing is replaced unless this machine's files can be read, and go with what the API
server has read of those before.  One replacement at a time; of several that wait, the newest alone.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from flyweight.describe import ModelDescription, fingerprint_text
from flyweight.errors import ConfigError, FlyweightError
from flyweight.server.lifecycle.loading import ModelReader
from flyweight.server.model_entry import ModelEntry
from flyweight.server.observability.log import ServerLog
from flyweight.server.replicas.builds import ADAPTERS, fingerprint_adapters
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.replicas.reports import FILES, WEIGHTS, shorten
from flyweight.server.transport.errors import print_failure

MODEL = "fingerprint"  # the fact that other weights of the model change
UNLOADED = "the model is not loaded; a load reads its files"
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


class ReplicaUpdates:
    """`entry` is the model that all replicas have."""

    def __init__(
        self, host: ReplicaHost, entry: ModelEntry, reader: ModelReader, log: ServerLog
    ) -> None:
        self.host, self.entry, self.reader, self.log = host, entry, reader, log
        self.running = 0  # calls of `reload` that have not returned
        self._wishes = 0
        self._replacing = asyncio.Lock()

    async def reload(self) -> None:
        """Those that run go on where the files cannot be used, or the cluster fails."""
        self._wishes += 1
        wish = self._wishes
        self.running += 1
        try:
            async with self._replacing:
                if wish == self._wishes:  # else a later one reads the files anew
                    await self._replace()
        except FlyweightError as error:
            self.log.event("replicas_unchanged", problem=error)
        except Exception as error:
            print_failure("the reload of replicas", error)
            self.log.event("replicas_unchanged", problem=type(error).__name__)
        finally:
            self.running -= 1

    async def _replace(self) -> None:
        if self.entry.model is None:
            raise ConfigError(UNLOADED)
        files = await asyncio.to_thread(self._read)
        weights = {name: files.pop(name) for name in WEIGHTS}
        check_files(files, self.entry.client.facts, LOAD)
        self.log.event("replicas_reloading", replicas=len(self.host.set.open))
        await self.host.replace(weights)

    def _read(self) -> dict[str, Any]:
        """Checks the files as at the start."""
        found = self.reader.describe(self.entry)
        try:
            adapters = fingerprint_adapters(self.entry.options.settings.adapters)
            return {**describe_files(found), ADAPTERS: adapters}
        finally:
            found.checkpoint.close()
