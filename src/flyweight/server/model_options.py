"""What a user may choose about each of several models behind one server, and where a running server
gets other models from.

Invariant: names are checked when the entries are made.  Imports little: it is read before the
engine process is started.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flyweight.arguments.draft import SettingRequests
from flyweight.config import Settings

FOREVER = float("inf")
MOST_MODELS = 64


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """`names` are what requests call the model; without any it is called by its file's name.  The
    engine gets step time in proportion to its `weight`; `memory` (a size, or a share such as 25%)
    is what it may hold, "" for an equal part.  The model is unloaded `keep_alive` seconds after its
    last request, and loaded at the server's start if `preload`.  `requests` say how its settings
    were requested, None: as the server's; models do not differ by them.
    """

    settings: Settings
    names: tuple[str, ...] = ()
    weight: float = 1.0
    memory: str = ""
    keep_alive: float = FOREVER
    preload: bool = False
    requests: SettingRequests | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ModelSources:
    """`read` reads the models again, those of `file` (the path of --models-file) with them; without
    a file it is None.  `make` gives the options of a further model, from its path and its name.
    Both raise `ConfigError` or `CheckpointError`.
    """

    file: str = ""
    read: Callable[[], Sequence[ModelOptions]] | None = None
    make: Callable[[str, str], ModelOptions] | None = None


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """Names of models: new ones, those that are served no more, and those with other options."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
