"""Changes which models a running server has: the models file is read again, or a model is pulled.

Invariant: all models change together or, where one of them is refused, none.  A model that is
loaded keeps its options until it is loaded again.  One pull runs at a time.  Knows no HTTP.
"""

import asyncio
from collections.abc import Sequence

from flyweight.describe import LoadListener, fetch, find_here
from flyweight.errors import CheckpointError, ConfigError, RequestError
from flyweight.server.lifecycle.loading import plan_entries
from flyweight.server.lifecycle.replacing import ReplicaUpdates
from flyweight.server.model_directory import ModelDirectory
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import ModelChanges, ModelOptions, ModelSources
from flyweight.server.observability.log import ServerLog
from flyweight.server.settings import ServerSettings
from flyweight.weights.hub.names import HubName, parse_hub_name


class ModelUpdates:
    """`listed` are the models of the command line and of the models file."""

    def __init__(
        self,
        listed: Sequence[ModelOptions],
        sources: ModelSources,
        server: ServerSettings,
        directory: ModelDirectory,
        log: ServerLog,
    ) -> None:
        self.sources, self.server = sources, server
        self.directory, self.log = directory, log
        self.replicas: ReplicaUpdates | None = None  # which have no models file
        self._listed = tuple(listed)
        self._pulled: dict[str, ModelOptions] = {}  # by name
        self._changing, self._pulling = asyncio.Lock(), asyncio.Lock()

    async def reload(self) -> ModelChanges:
        """Reads the models file again, or lets replicas read the model's files.  Raises
        `ConfigError` or `CheckpointError`; nothing has changed then.
        """
        if self.replicas is not None:
            replaced = await self.replicas.replace()
            return ModelChanges(changed=(self.replicas.entry.name,) if replaced else ())
        async with self._changing:
            try:
                if self.sources.read is None:
                    raise ConfigError("there is no --models-file to read again")
                listed = tuple(await asyncio.to_thread(self.sources.read))
                changes = self._apply(listed, self._pulled)
            except (CheckpointError, ConfigError) as error:
                self.log.event("models_unchanged", problem=error)
                raise
            self._listed = listed
            names = {"added": changes.added, "removed": changes.removed, "changed": changes.changed}
            self.log.event("models_reloaded", **{key: ",".join(one) for key, one in names.items()})
            return changes

    async def pull(self, name: str, tell: LoadListener) -> None:
        """Fetches a model of the Hub, or its changes, and serves it from now on.  Nothing is
        fetched for a served model that is a file or folder here.  Raises `RequestError` for a name
        that is none of the Hub, else `CheckpointError` or `ConfigError`.
        """
        entry = next((one for one in self.directory.entries if one.serves(name)), None)
        found = self.parse(name)
        if found is None:
            return
        async with self._pulling:
            settings = self.directory.first.newest.settings
            path = await asyncio.to_thread(fetch, found, settings, tell, newest=True)
        if entry is not None and entry.name not in self._pulled:
            entry.note_new_files()
            return
        async with self._changing:
            assert self.sources.make is not None, "--allow-pull is set"
            named = str(found)
            pulled = {**self._pulled, named: self.sources.make(str(path), named)}
            self._apply(self._listed, pulled)
            self._pulled = pulled
            self.log.event("model_pulled", model=named)

    def parse(self, name: str) -> HubName | None:
        """The Hub's name of a model that is served or may be pulled; None for one that is served
        from a file or folder here.  Raises `RequestError`.
        """
        for entry in self.directory.entries:
            if entry.serves(name) and entry.name not in self._pulled:
                settings = entry.newest.settings
                model = settings.model
                here = model is None or find_here(model) is not None
                return None if here else parse_hub_name(str(model), settings.revision)
        try:
            found = parse_hub_name(name)
        except CheckpointError as error:
            raise RequestError(f": {error}", "model") from None
        if found is None or not name.isprintable():
            raise RequestError(
                "is not a name on the Hub",
                "model",
                value=name,
                allowed="org/name, org/name:Q4_K_M, or org/name:file.gguf",
            )
        return found

    def _apply(
        self, listed: Sequence[ModelOptions], pulled: dict[str, ModelOptions]
    ) -> ModelChanges:
        """Serves these models; one that is listed is not replaced by one that was pulled.  Raises
        `ConfigError`.
        """
        taken = {name for one in listed for name in one.names}
        more = [one for name, one in pulled.items() if name not in taken]
        plans = plan_entries([*listed, *more], self.server)
        known = {entry.name: entry for entry in self.directory.known}
        before = [entry.name for entry in self.directory.entries]
        entries, changed = list[ModelEntry](), list[str]()
        for plan in plans:
            entry = known.get(plan.names[0])
            if entry is None:
                entry = plan.make(self.server, self.directory.host)
            elif entry.change(plan.options, plan.setup) and entry.name in before:
                changed.append(entry.name)
            entries.append(entry)
        self.directory.replace(entries)
        names = [entry.name for entry in entries]
        for entry in entries:
            if entry.options.preload and entry.name not in before:
                self.directory.start(entry)
        return ModelChanges(
            tuple(name for name in names if name not in before),
            tuple(name for name in before if name not in names),
            tuple(changed),
        )
