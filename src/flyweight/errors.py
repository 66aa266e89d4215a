"""The three things that can go wrong, each one line that names the thing, the value and the way
out.

A broken invariant of ours is an `assert`; everything here is somebody's input.  The command line
turns these into exit code 2, the server (later) into an OpenAI-shaped 4xx.  Nothing here knows how
it will be shown.
"""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_NAME = 100  # characters of a word that are compared with names


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


def nearest(word: str, known: Iterable[str], alike: float = 0.5) -> str:
    """`" (did you mean 'x'?)"` when `word` is likely one of `known`, misspelt or in part, else an
    empty string.  `alike` is difflib's least ratio, of names without leading dashes.
    """
    bare = word[:LONGEST_NAME].strip("-/")
    names = {name.strip("-/"): name for name in known}
    close = get_close_matches(bare, names, n=5, cutoff=alike)
    likely = [name for name in close if _likely(bare, name)]
    return f" (did you mean {names[likely[0]]!r}?)" if likely else ""


def _likely(word: str, name: str) -> bool:
    """At most a third of the letters differ, or one is the other's first or last words."""
    short, long = sorted((word, name), key=len)
    part = len(short) >= 4 and (long.startswith(short) or long.endswith(f"-{short}"))
    return part or edits(word, name) * 3 <= len(long)


def edits(a: str, b: str) -> int:
    """Letters to insert, drop, replace or swap with their neighbour to make `a` of `b`."""
    rows = [[0] * (len(b) + 1), list(range(len(b) + 1))]  # the row before the last, the last
    for i in range(1, len(a) + 1):
        row = [i]
        for j in range(1, len(b) + 1):
            cost = min(rows[1][j] + 1, row[-1] + 1, rows[1][j - 1] + (a[i - 1] != b[j - 1]))
            if i > 1 and j > 1 and (a[i - 1], a[i - 2]) == (b[j - 2], b[j - 1]):
                cost = min(cost, rows[0][j - 2] + 1)
            row.append(cost)
        rows = [rows[1], row]
    return rows[1][len(b)]
