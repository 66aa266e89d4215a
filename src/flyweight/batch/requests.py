"""From a row to a request: OpenAI's lines of a batch, and plain rows.

Invariant: a row that passes names an API of `PATHS` and has a JSON object for its body.  What the
body holds is checked as `flyweight serve` checks it.  Knows no model.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from flyweight.batch.rows import MAX_ROW
from flyweight.errors import RequestError, nearest

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
PATHS = {"messages": CHAT, "prompt": COMPLETIONS, "input": EMBEDDINGS}  # by field of a plain row
LINE = ("custom_id", "method", "url", "body")  # OpenAI's fields
LONGEST_ID = 512


@dataclass(frozen=True, slots=True)
class RowRequest:
    """`url` is the path of an API, `body` the JSON text of its request body."""

    url: str
    body: bytes


def read_fields(data: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a row.  Raises `RequestError`."""
    if len(data) > MAX_ROW:
        raise RequestError(f"the row has more than {MAX_ROW} bytes", code="body_bytes_limit")
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise RequestError("the row is not a JSON object", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"the row is not valid JSON: {str(error) or 'it is nested too deeply'}"
        raise RequestError(problem, code="invalid_json") from None


def read_custom_id(fields: dict[str, msgspec.Raw], number: int) -> str:
    """The caller's name of a row; without one it is `row-NUMBER`.  Raises `RequestError`."""
    given = fields.get("custom_id", msgspec.Raw(b"null"))
    found = _read(given, "custom_id", str | int | None, "a string or a whole number")
    name = f"row-{number}" if found is None else str(found)
    if len(name) > LONGEST_ID:
        allowed = f"at most {LONGEST_ID} characters"
        raise RequestError("is too long", "custom_id", value=name, allowed=allowed)
    return name


def read_request(fields: dict[str, msgspec.Raw]) -> RowRequest:
    """What a row requests.  Raises `RequestError`."""
    if "body" in fields or "url" in fields:
        return _read_line(fields)
    given = [name for name in PATHS if name in fields]
    if len(given) != 1:
        wrong = f"and {given[0]} exclude each other" if given else "is missing"
        allowed = f"exactly one of {', '.join(PATHS)}, or OpenAI's fields: {', '.join(LINE)}"
        code = "" if given else "missing_field"
        raise RequestError(wrong, given[-1] if given else "prompt", allowed=allowed, code=code)
    body = {name: value for name, value in fields.items() if name != "custom_id"}
    return RowRequest(PATHS[given[0]], msgspec.json.encode(body))


def _read_line(fields: dict[str, msgspec.Raw]) -> RowRequest:
    """OpenAI's line of a batch."""
    for name in fields:
        if name not in LINE:
            problem = f"is not a field of a batch's line{nearest(name, LINE)}"
            raise RequestError(problem, name[:100], code="unknown_field", allowed=", ".join(LINE))
    for name in ("url", "body"):
        if name not in fields:
            raise RequestError("is missing", name, code="missing_field")
    method = _read(fields.get("method", msgspec.Raw(b'"POST"')), "method", str, "POST")
    if method != "POST":
        raise RequestError("is not valid", "method", value=method, allowed="POST")
    known = tuple(PATHS.values())
    url = _read(fields["url"], "url", str, ", ".join(known))
    if url not in known:
        allowed = f"{', '.join(known)}{nearest(url, known)}"
        raise RequestError("is not valid", "url", value=url, allowed=allowed)
    return RowRequest(url, bytes(fields["body"]))


def _read(raw: msgspec.Raw, name: str, kind: Any, allowed: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        value = bytes(raw)[:80].decode("utf-8", "replace")
        raise RequestError("is not valid", name, value=value, allowed=allowed) from None
