"""Passages of a context as files hold them, best first.

Invariant: no passage is empty.  Knows no model.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyweight.errors import ConfigError
from flyweight.validation.untrusted import read_bytes

MOST_BYTES = 64 << 20
PARAGRAPHS = re.compile(r"\n[ \t]*\n\s*")


def read_passages(files: Sequence[str]) -> list[str]:
    """The passages of all files, in order: texts or objects with a text in `.json` (a list) and
    `.jsonl`; the paragraphs of any other file.  Raises `ConfigError` and `CheckpointError`.
    """
    found: list[str] = []
    for name in files:
        path = Path(name).expanduser()
        try:
            text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f": is not UTF-8 at byte {error.start}", str(path)) from None
        if path.suffix == ".jsonl":
            lines = enumerate(text.splitlines(), 1)
            found += [
                _read_passage(_parse(line, f"{path}:{i}"), f"{path}:{i}")
                for i, line in lines
                if line.strip()
            ]
        elif path.suffix == ".json":
            listed = _parse(text, str(path))
            if not isinstance(listed, list):
                raise ConfigError(": is no list of passages", str(path))
            found += [_read_passage(one, f"{path}: {i}") for i, one in enumerate(listed)]
        else:
            found += split_passages(text)
    if not found:
        raise ConfigError(": there is no passage", ", ".join(files))
    return found


def split_passages(text: str) -> list[str]:
    """The paragraphs of a text."""
    return [part.strip() for part in PARAGRAPHS.split(text) if part.strip()]


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f": is not JSON: {error}", where) from None


def _read_passage(given: Any, where: str) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(": has no text", where, allowed="a text, or an object with a text")
    return text
