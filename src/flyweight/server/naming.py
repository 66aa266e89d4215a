"""What a served model is called where nobody said.

Invariant: a name that is told to clients never says where a file lies.  Looks whether there is a
file, as who finds the model does, and reads nothing.
"""

import os
from typing import NamedTuple

from flyweight.build import DEFAULT_MODEL


class Called(NamedTuple):
    """A model's name; `also` is taken in requests and told to nobody."""

    name: str
    also: frozenset[str] = frozenset()


def called(model: str | os.PathLike[str] | None) -> Called:
    """A file or folder by its own name, and in requests by the path it was served by too; a model
    of the Hub by its name there.
    """
    given = str(model or DEFAULT_MODEL)
    path = os.path.expanduser(given)
    if given == DEFAULT_MODEL or not os.path.exists(path):
        return Called(given)
    whole = os.path.abspath(path)
    return Called(os.path.basename(whole) or "model", frozenset({given, path, whole}))
