"""What a server is started with: settings, the names of the model, and what shows the start.

Invariant: a name that clients are shown never says where a file is.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from flyweight.arguments.wishes import SettingRequests
from flyweight.config import Settings
from flyweight.describe import DEFAULT_MODEL, LoadListener
from flyweight.errors import ConfigError
from flyweight.server import pipe
from flyweight.server.api_server import ApiServer
from flyweight.server.observability.logfile import LogFile
from flyweight.server.settings import ServerSettings
from flyweight.validation.untrusted import shown


class ShowsLoading(LoadListener, Protocol):
    """What shows a server's start.  `found` may refuse a model by raising."""

    def found(self, path: Path) -> None: ...
    def show_progress(self, message: pipe.LoadingProgress) -> None: ...
    def ready(self, server: ApiServer, port: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerState:
    """`wishes` are the settings that the user gave, for the effective configuration; the log goes
    to stderr where there is no `log`.
    """

    settings: Settings
    server: ServerSettings
    show: ShowsLoading
    wishes: SettingRequests
    log: LogFile | None = None


class ServedName(NamedTuple):
    """A model's name; `also` is taken in requests and told to nobody."""

    name: str
    also: frozenset[str] = frozenset()


def name_model(model: str | os.PathLike[str] | None) -> ServedName:
    """A file or folder by its own name, and in requests by the path it was served by too; a model
    of the Hub by its name there.
    """
    given = str(model or DEFAULT_MODEL)
    path = os.path.expanduser(given)
    if given == DEFAULT_MODEL or not os.path.exists(path):
        return ServedName(given)
    whole = os.path.abspath(path)
    return ServedName(os.path.basename(whole) or "model", frozenset({given, path, whole}))


def choose_names(
    model: str | os.PathLike[str] | None, given: Sequence[str], adapters: Collection[str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """What clients are told the model is called, and what is taken beside it.  Raises `ConfigError`
    where an adapter has one of these names: nobody could ask for it.
    """
    own = name_model(model)
    names, also = (tuple(given), frozenset[str]()) if given else ((own.name,), own.also)
    taken = [name for name in adapters if name in names or name in also]
    if taken:
        raise ConfigError(
            f"--lora-modules: {shown(taken[0])} is the model's own name; allowed: another name for "
            "the adapter, or another --served-model-name"
        )
    return names, also
