"""The text of an evaluation, and the windows it is scored in.

Invariant: every token of the text is scored once, by one window (without a beginning token there is
nothing before the first, which is not scored).  Knows no model.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from flyweight.config import find_data_folder, whole
from flyweight.errors import ConfigError
from flyweight.text.sample_text import EVALUATION, read_sample
from flyweight.validation.untrusted import read_bytes

DEFAULT_TEXT = "text-wikitext2/wiki.test.raw"  # in the folder FLYWEIGHT_DATA
LONGEST_CONTEXT = 1 << 20
MOST_TEXT = 1 << 30  # bytes


@dataclass(frozen=True, slots=True)
class EvalText:
    """A text with the name of its file, its size and the start of its SHA-256."""

    name: str
    nbytes: int
    digest: str
    text: str

    @classmethod
    def read(cls, given: str | None) -> "EvalText":
        """The file, else WikiText-2 in FLYWEIGHT_DATA, else Python's help.  Raises
        `ConfigError`.
        """
        data = find_data_folder()
        if given is None and data is None:
            name, text = read_sample(EVALUATION)
            raw = text.encode()
            return cls(name, len(raw), sha256(raw).hexdigest()[:16], text)
        path = Path(given).expanduser() if given is not None else Path(str(data)) / DEFAULT_TEXT
        raw = read_bytes(path, MOST_TEXT)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"is not UTF-8 at byte {error.start}", "text", value=str(path)
            ) from None
        return cls(path.name, len(raw), sha256(raw).hexdigest()[:16], text)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """A text cut into windows: `context` tokens a window at most, `stride` new ones in each after
    the first, `limit` scored in all (None: the whole text).  Raises `ConfigError`.
    """

    context: int = 512
    stride: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        whole("context", self.context, 2, LONGEST_CONTEXT)
        if self.stride is not None:
            whole("stride", self.stride, 1, self.context - 1)
        if self.limit is not None:
            whole("limit_tokens", self.limit, 1)

    @property
    def step(self) -> int:
        """New tokens in each window after the first."""
        return self.stride or self.context // 2

    def cut(self, tokens: list[int], lead: tuple[int, ...]) -> "list[Window]":
        """The windows of a text's tokens, each with the tokens `lead` before it."""
        begin = 0 if lead else 1
        total = len(tokens) if self.limit is None else min(len(tokens), self.limit + begin)
        room = self.context - len(lead)
        if total < 2 - len(lead):
            raise ConfigError("has no token to score; give a longer text", "text")
        if total < room:
            raise ConfigError(
                f"is {len(lead) + total} tokens, fewer than context = {self.context}",
                "text" if self.limit is None or self.limit >= len(tokens) else "limit_tokens",
                hint=f"nearest valid: context = {max(2, len(lead) + total)}",
            )
        windows: list[Window] = []
        while begin < total:
            stop = min(total, begin + self.step) if windows else room
            start = stop - room
            new = stop - begin
            windows.append(Window((*lead, *tokens[start:stop]), new))
            begin = stop
        return windows


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens of which the last `new` are scored."""

    tokens: tuple[int, ...]
    new: int
