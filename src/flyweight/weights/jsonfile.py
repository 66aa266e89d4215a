"""JSON from files nobody vouches for: bounded size, no repeated keys, an object at the top, or a
`CheckpointError`.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from flyweight.errors import CheckpointError

MOST_BYTES = 64 << 20
MOST_VALUES = 4 << 20  # commas; a parsed value costs ten times its text, so text alone is no bound


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, or `CheckpointError` naming the file."""
    try:
        size = os.stat(path).st_size
        if size > MOST_BYTES or not path.is_file():
            raise CheckpointError(
                f"{path}: {size} bytes is not a model's JSON file (at most {MOST_BYTES})"
            )
        return parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """`text` as a JSON object; `where` names it in the error."""
    if text.count(b",") > MOST_VALUES:
        raise CheckpointError(f"{where}: more than {MOST_VALUES} JSON values")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise CheckpointError(f"{where}: the key {twice[:200]!r} appears twice")
        return found

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise CheckpointError(f"{where}: JSON nested too deeply") from None
    except ValueError as error:  # bad UTF-8, bad JSON, or an integer of thousands of digits
        raise CheckpointError(f"{where}: not valid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: a JSON object was expected, found {type(value).__name__}")
    return value
