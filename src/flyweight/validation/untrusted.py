"""Values from untrusted files: JSON of bounded size, GGUF's token ids, and a file's own
words made fit for the one line of an error.

Invariant: whatever a file holds, the outcome is a checked value or a `CheckpointError` (a
`ConfigError` if an option names the file), and no control character of it reaches a terminal.  Does
not know what a model is.
"""

import json
import stat
from collections import Counter
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from flyweight.errors import CheckpointError, ConfigError, brief

MOST_BYTES = 64 << 20
MOST_VALUES = 4 << 20  # commas; a parsed value costs ten times its text, so text alone is no bound
ABSENT = 0xFFFFFFFF  # -1 as u32: how some writers of GGUF say "there is none"
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")  # of sequence, of turn, of message


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """A regular file of at most `most` bytes, whole, or `CheckpointError` naming it."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would block
            raise CheckpointError(f"{path}: not a regular file")
        if found.st_size > most:
            raise CheckpointError(f"{path}: {found.st_size} bytes; at most {most}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: Path, option: str, most: int) -> str:
    """The text of a file that an option names.  Raises `ConfigError`."""
    try:
        return read_bytes(path.expanduser(), most).decode("utf-8")
    except CheckpointError as error:
        raise ConfigError(f"{option} {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option} {path}: not UTF-8 text") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, or `CheckpointError` naming the file."""
    return parse_object(read_bytes(path), str(path))


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """`text` as a JSON object; `where` names it in the error."""
    if text.count(b",") > MOST_VALUES:
        raise CheckpointError(f"{where}: more than {MOST_VALUES} JSON values")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise CheckpointError(f"{where}: the key {shown(twice)} appears twice")
        return found

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise CheckpointError(f"{where}: JSON nested too deeply") from None
    except ValueError as error:  # bad UTF-8, bad JSON, or an integer of thousands of digits
        raise CheckpointError(f"{where}: not valid JSON: {one_line(str(error))}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: a JSON object was expected, found {_name_kind(value)}")
    return value


def _name_kind(value: object) -> str:
    """What JSON calls a value that is no object."""
    if value is None or isinstance(value, bool):
        return spell(value)
    if isinstance(value, list):
        return "an array"
    return "a string" if isinstance(value, str) else "a number"


def read_token_id(metadata: Mapping[str, object], key: str, where: str = "") -> int | None:
    """`tokenizer.ggml.<key>` of GGUF metadata; none when it is missing or says there is none.
    `where` begins the error.  The kind is tested before anything else: arrays compare to arrays.
    """
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    found = int(value) if whole else -2  # type: ignore[call-overload]
    if found < -1:
        raise CheckpointError(f"{where}tokenizer.ggml.{key} is {shown(value)}, not a token id")
    return None if found in (-1, ABSENT) else found


def shown(value: object, most: int = 80) -> str:
    """A value of a file as an error may show it: quoted, escaped, cut."""
    return brief(value, most)


def spell(value: object, most: int = 80) -> str:
    """A value of JSON as an error may show it: as JSON writes it, cut, but texts as `shown`."""
    if isinstance(value, str):
        return shown(value, most)
    text = ""
    try:
        for part in json.JSONEncoder(ensure_ascii=False, default=repr).iterencode(value):
            text += part
            if len(text) > most:  # the rest may be long
                break
    except (TypeError, ValueError, RecursionError):  # no JSON: keys of another type, a cycle
        return shown(value, most)
    return printable(text[:most]) + "..." * (len(text) > most)


def one_line(text: str, most: int = 200) -> str:
    """Text with a file's words in it (another library's error) on one line, escaped, cut."""
    return printable(" ".join(text[: 8 * most].split())[:most])


def printable(text: str) -> str:
    """Every character that cannot be printed (ESC, BEL, half a surrogate) as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
