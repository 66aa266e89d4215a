"""What a user may choose about each of several models behind one server.

Invariant: names are checked when the entries are made.  Imports little: it is read before the
engine process is started.
"""

from dataclasses import dataclass

from flyweight.config import Settings

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """`names` are what requests call the model; without any it is called by its file's name.  The
    engine gets step time in proportion to its `weight`; `memory` (a size, or a share such as 25%)
    is what it may hold, "" for an equal part.  The model is unloaded `keep_alive` seconds after its
    last request, and loaded at the server's start if `preload`.
    """

    settings: Settings
    names: tuple[str, ...] = ()
    weight: float = 1.0
    memory: str = ""
    keep_alive: float = FOREVER
    preload: bool = False
