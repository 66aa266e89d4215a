"""Refusals in the names a dialect has for what is asked.

Invariant: only a refusal's first words and the field it names are changed, never a client's value.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from flyweight.errors import RequestError
from flyweight.server.transport.errors import HttpError

Names = tuple[tuple[str, str], ...]


@contextmanager
def named(*names: tuple[str, str]) -> Iterator[None]:
    """Refusals of what is done inside, under their names where ours (patterns) would begin them."""
    try:
        yield
    except RequestError as error:
        raise RequestError(renamed(str(error), names), renamed(error.field, names)) from None
    except HttpError as error:
        param = renamed(error.param, names) if error.param else error.param
        message = renamed(error.message, names)
        raise HttpError(error.status, message, param, error.code, error.headers) from None


def renamed(text: str, names: Names) -> str:
    """A text that begins with the name of a field, with the first of `names` that fits."""
    for ours, theirs in names:
        found, changed = re.subn(rf"^{ours}(?!\w)", theirs, text, count=1)
        if changed:
            return found
    return text
