"""What can go wrong because of an input: one error type with its data, and three kinds of it.

Invariant: `str()` of an error is one line that names the field, its value and what is allowed; it
is rendered here and never parsed.  A broken invariant of ours is an `assert`.  The command line
turns these errors into exit code 2, the server into the error shape of an API.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, Self

LONGEST_NAME = 100  # characters of a word that are compared with names
LONGEST_VALUE = 80  # characters of a value in a message
FieldNames = Mapping[str, str]  # paths of ours to theirs
OWN_NAMES: FieldNames = {}


class FlyweightError(Exception):
    """Root of every error a user can cause.

    `problem` says what is wrong, after `path`, the dotted name of the field or option, and `value`
    (`...`: none).  `allowed` lists what is valid and `hint` says what to do instead.  `code` is a
    stable name for programs, `bad_value` where something else is allowed; see docs/errors.md.
    """

    fallback = ""  # the code of an error without one

    def __init__(
        self,
        problem: str,
        path: str = "",
        *,
        code: str = "",
        value: object = ...,
        allowed: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(problem)
        self.problem, self.path, self.value = problem, path, value
        self.allowed, self.hint = allowed, hint
        judged = value is not ... or allowed
        self.code = code or ("bad_value" if judged else self.fallback)

    def __str__(self) -> str:
        value = "" if self.value is ... else f" = {brief(self.value)}"
        gap = "" if self.problem.startswith((":", ",", ";")) or not self.path else " "
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.path}{value}{gap}{self.problem}{allowed}{hint}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @property
    def lines(self) -> tuple[str, ...]:
        """Its text, a line for each thing that is wrong."""
        return (str(self),)

    @property
    def data(self) -> dict[str, Any]:
        """Its fields as plain values: `type(error)(**error.data)` has the same text."""
        found: dict[str, Any] = {"problem": self.problem, "path": self.path, "code": self.code}
        found |= {"allowed": self.allowed, "hint": self.hint}
        if self.value is not ...:
            small = isinstance(self.value, int) and abs(self.value) < 2**63
            plain = small or isinstance(self.value, str | float | None)
            found["value"] = self.value if plain else brief(self.value)
        return found

    def rename(self, names: FieldNames) -> Self:
        """The same error, whose path is translated by `names`; `*` in a name is any one part."""
        self.path = translate_path(self.path, names)
        return self


def translate_path(path: str, names: FieldNames) -> str:
    """A path whose first parts are replaced by the first of `names` that fits."""
    parts = path.split(".")
    for ours, theirs in names.items():
        head = ours.split(".")
        begin, rest = parts[: len(head)], parts[len(head) :]
        if len(begin) == len(head) and all(
            one in ("*", part) for one, part in zip(head, begin, strict=True)
        ):
            for part in (part for one, part in zip(head, begin, strict=True) if one == "*"):
                theirs = theirs.replace("*", part, 1)
            return ".".join([theirs, *rest])
    return path


@contextmanager
def field_names(names: FieldNames) -> Iterator[None]:
    """Errors raised inside get the names of fields that an API or a command uses."""
    try:
        yield
    except FlyweightError as error:
        error.rename(names)
        raise


def brief(value: object, most: int = LONGEST_VALUE) -> str:
    """A value as a message shows it: quoted, escaped, cut."""
    if isinstance(value, str):
        return repr(value[:most]) + ("..." if len(value) > most else "")
    short = Repr()
    short.maxstring = short.maxlong = short.maxother = most
    text = " ".join(short.repr(value).split())[:most]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class RequestError(FlyweightError):
    """A request that cannot be served; raised before it reaches the scheduler."""

    fallback = "bad_request"


class EngineError(FlyweightError):
    """The engine failed, not the request."""


class ConfigError(FlyweightError):
    """A setting that is out of range, contradictory, or cannot fit this machine."""


class MemoryShortage(ConfigError):
    """What is wanted does not fit in the memory that is allowed."""


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
    return part or count_edits(word, name) * 3 <= len(long)


def count_edits(a: str, b: str) -> int:
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


class RankLost(BaseException):
    """Another process that computes a part of the model has ended, so this one cannot go on.  Not
    an `Exception`: no request is at fault, and nothing is left to try.
    """
