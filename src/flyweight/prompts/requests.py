"""Requests as files hold them: a text, a list of chat messages, or JSON lines with either.

Invariant: every request has at least one text, and names the file and line it is from.  Fields of
a captured request that do not reach the prompt (model, temperature) are skipped.  Knows no model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyweight.errors import ConfigError
from flyweight.text.messages import check, join_text
from flyweight.validation.untrusted import read_bytes

MOST_BYTES = 64 << 20
FORMS = "a list of chat messages, or an object with messages or a prompt"


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request of a file.  `texts` are its prompt, or the contents of its messages in order."""

    where: str
    texts: tuple[str, ...]
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of_messages(
        cls, where: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()
    ) -> "SampleRequest":
        """A conversation.  Raises `RequestError`."""
        check(messages)
        texts = tuple(join_text(message.get("content")) or "" for message in messages)
        return cls(where, texts, tuple(messages), tuple(tools))

    def with_texts(self, texts: Sequence[str]) -> "SampleRequest":
        """The same request with other texts at the same places."""
        messages = tuple(
            message if texts[i] == self.texts[i] else {**message, "content": texts[i]}
            for i, message in enumerate(self.messages)
        )
        return replace(self, texts=tuple(texts), messages=messages)

    def name_text(self, index: int) -> str:
        """What a person calls a text: `messages.0 system`, or nothing for a plain prompt."""
        return f"messages.{index} {self.messages[index]['role']}" if self.messages else ""


def read_requests(files: Sequence[str]) -> list[SampleRequest]:
    """The requests of all files, in order.  `.json` is one request, `.jsonl` one a line, any other
    file a text.  Raises `ConfigError` and `CheckpointError`.
    """
    found: list[SampleRequest] = []
    for name in files:
        path = Path(name).expanduser()
        try:
            text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f": is not UTF-8 at byte {error.start}", str(path)) from None
        if path.suffix == ".jsonl":
            lines = enumerate(text.splitlines(), 1)
            found += [_read(line, f"{path}:{i}") for i, line in lines if line.strip()]
        else:
            found.append(_read(text, str(path)) if path.suffix == ".json" else _make(text, path))
    if not found:
        raise ConfigError(": there is no request", ", ".join(files))
    return found


def _make(text: str, path: Path) -> SampleRequest:
    if not text.strip():
        raise ConfigError(": the prompt is empty", str(path))
    return SampleRequest(str(path), (text,))


def _read(text: str, where: str) -> SampleRequest:
    """A request written in JSON, also as a line of a batch file, whose body it is."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f": is not JSON: {error}", where) from None
    if isinstance(given, dict) and isinstance(given.get("body"), dict):
        given = given["body"]
    if isinstance(given, list):
        given = {"messages": given}
    if isinstance(given, dict) and given.get("messages"):
        tools = given.get("tools") or ()
        if not isinstance(tools, list | tuple):
            raise ConfigError("is not valid", f"{where}: tools", value=tools, allowed="a list")
        return SampleRequest.of_messages(where, given["messages"], tools)
    prompt = given.get("prompt") if isinstance(given, dict) else given
    if not isinstance(prompt, str) or not prompt:
        raise ConfigError(": has no prompt", where, allowed=FORMS)
    return SampleRequest(where, (prompt,))
