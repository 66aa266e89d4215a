"""The three things that can go wrong, each one line that names the thing, the value and the way
out.

A broken invariant of ours is an `assert`; everything here is somebody's input.  The command line
turns these into exit code 2, the server (later) into an OpenAI-shaped 4xx.  Nothing here knows how
it will be shown.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FlyweightError(Exception):
    """Root of every error a user can cause; its text is one line, fit to show as it is."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Its text, a line for each thing that is wrong."""
        return (str(self),)


class RequestError(FlyweightError):
    """A request that cannot be served; raised before it reaches the scheduler.  `field` names the
    option.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ConfigError(FlyweightError):
    """A setting that is out of range, contradictory, or cannot fit this machine."""


class Refusals(ConfigError):
    """Several settings that cannot be; its text joins what is wrong with each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.all = tuple(dict.fromkeys(lines))
        super().__init__("; ".join(self.all))

    @property
    def lines(self) -> tuple[str, ...]:
        return self.all


class CheckpointError(FlyweightError):
    """A model file that is damaged, incomplete, or of a kind we do not read; names file and tensor
    or key.
    """


def nearest(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """`" (did you mean 'x'?)"` when one of `known` is close to `word`, a share `alike` of them the
    same, else an empty string.
    """
    close = get_close_matches(word, list(known), n=1, cutoff=alike)
    return f" (did you mean {close[0]!r}?)" if close else ""
