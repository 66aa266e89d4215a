"""Errors of a cluster, which are of its library's many kinds, as ours: in one line.

Standard library only; knows no Ray.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flyweight.errors import EngineError, FlyweightError

LONGEST = 200  # characters


class CallError(EngineError):
    """A replica failed in one call, and goes on with the others."""


@contextmanager
def explain_errors() -> Iterator[None]:
    """Errors that are not ours become `EngineError`."""
    try:
        yield
    except FlyweightError:
        raise
    except Exception as error:
        raise EngineError(describe_error(error)) from None


def describe_error(error: BaseException) -> str:
    """Ray's messages have several lines, often with a traceback: the cause or the last line says
    most.
    """
    if isinstance(error, FlyweightError):
        return str(error)
    cause = getattr(error, "cause", None)  # of an error in another process
    found = cause if isinstance(cause, BaseException) else error
    lines = [line.strip() for line in str(found).splitlines() if line.strip()]
    if not lines:
        return type(found).__name__
    return (lines[-1] if "Traceback" in str(found) else lines[0])[:LONGEST]
