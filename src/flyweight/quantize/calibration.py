"""The text a model is calibrated on: windows of tokens, all of one length.

Invariant: windows follow each other in the text without overlap, from its beginning, so equal texts
give equal windows.  Knows no model.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import ConfigError
from flyweight.validation.untrusted import read_bytes, shown
from flyweight.wire import I32

MOST_TEXT = 1 << 30  # bytes
LEAST_TOKENS = 128
PART = 1 << 16  # characters that are tokenized at once


@dataclass(frozen=True, slots=True)
class Reading:
    """How a model reads: text to ids, and chat messages to the text of its template."""

    encode: Callable[[str], list[int]]
    render: Callable[[list[Any]], str]


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Texts or lists of chat messages, with their file's name and the start of its SHA-256."""

    name: str
    digest: str
    texts: tuple[str | list[Any], ...]

    @classmethod
    def read(cls, path: Path) -> "CalibrationText":
        """A text, or JSON lines: a text each, or an object with `text`, `prompt` or `messages`.
        Raises `ConfigError`.
        """
        raw = read_bytes(path, MOST_TEXT)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"is not UTF-8 at byte {error.start}", "calibration", value=str(path)
            ) from None
        texts: tuple[str | list[Any], ...] = (text,)
        if path.suffix in (".jsonl", ".json"):
            lines = [line for line in text.splitlines() if line.strip()]
            texts = tuple(_read_line(line, i) for i, line in enumerate(lines, 1))
        return cls.of(path.name, texts, raw)

    @classmethod
    def of(
        cls, name: str, texts: Sequence[str | list[Any]], raw: bytes | None = None
    ) -> "CalibrationText":
        held = raw if raw is not None else "\n".join(map(str, texts)).encode()
        return cls(name, sha256(held).hexdigest()[:16], tuple(texts))

    def cut(self, reading: Reading, lead: tuple[int, ...], samples: int, length: int) -> I32:
        """[samples, length] token ids, fewer windows where the text is short, one shorter window
        where it is shorter than that; `lead` begins every window.  Raises `ConfigError`.
        """
        plain = (x if isinstance(x, str) else reading.render(x) for x in self.texts)
        room, ids = length - len(lead), list[int]()
        for text in chain.from_iterable(map(_cut_text, plain)):
            ids += reading.encode(text)
            if len(ids) >= samples * room:
                break
        if len(ids) < min(LEAST_TOKENS, room):
            raise ConfigError(
                f"has {len(ids)} tokens; at least {min(LEAST_TOKENS, room)} are needed",
                "calibration",
                value=self.name,
            )
        count = min(samples, len(ids) // room)
        if not count:
            return np.array([[*lead, *ids]], np.int32)
        windows = np.array(ids[: count * room], np.int32).reshape(count, room)
        begin = np.tile(np.array(lead, np.int32), (count, 1))
        return np.ascontiguousarray(np.concatenate([begin, windows], axis=1))


def _cut_text(text: str) -> Iterator[str]:
    """Parts of a long text, which end with lines: no more is tokenized than is needed."""
    start = 0
    while start < len(text):
        stop = start + PART
        newline = text.find("\n", stop)
        stop = len(text) if newline < 0 else newline + 1
        yield text[start:stop]
        start = stop


def _read_line(line: str, number: int) -> str | list[Any]:
    where = f"line {number}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where} is not JSON: {shown(line)}", "calibration") from None
    if isinstance(found, str):
        return found
    if isinstance(found, dict):
        for key in ("text", "prompt"):
            if isinstance(found.get(key), str):
                return str(found[key])
        if isinstance(found.get("messages"), list):
            return list(found["messages"])
    raise ConfigError(
        f"{where} is {shown(found)}; a text, or an object with text, prompt or messages expected",
        "calibration",
    )
