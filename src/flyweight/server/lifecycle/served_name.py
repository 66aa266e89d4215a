"""What a served model is called where nobody said.

Invariant: a name that is told to clients never says where a file lies.  Looks whether there is a
file, as who finds the model does, and reads nothing.
"""

import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from flyweight.describe import DEFAULT_MODEL
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import shown


class ServedName(NamedTuple):
    """A model's name; `also` is taken in requests and told to nobody."""

    name: str
    also: frozenset[str] = frozenset()


def called(model: str | os.PathLike[str] | None) -> ServedName:
    """A file or folder by its own name, and in requests by the path it was served by too; a model
    of the Hub by its name there.
    """
    given = str(model or DEFAULT_MODEL)
    path = os.path.expanduser(given)
    if given == DEFAULT_MODEL or not os.path.exists(path):
        return ServedName(given)
    whole = os.path.abspath(path)
    return ServedName(os.path.basename(whole) or "model", frozenset({given, path, whole}))


def names_of(
    model: str | os.PathLike[str] | None, given: Sequence[str], adapters: Collection[str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """What clients are told the model is called, and what is taken beside it.  Raises `ConfigError`
    where an adapter has one of these names: nobody could ask for it.
    """
    own = called(model)
    names, also = (tuple(given), frozenset[str]()) if given else ((own.name,), own.also)
    taken = [name for name in adapters if name in names or name in also]
    if taken:
        raise ConfigError(
            f"--lora-modules: {shown(taken[0])} is the model's own name; allowed: another name for "
            "the adapter, or another --served-model-name"
        )
    return names, also
