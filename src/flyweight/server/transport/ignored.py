"""What of a request had no effect, and the headers that say so.

Invariant: names are a client's own, so they are percent-encoded, and what does not fit is counted.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

HEADER, SCHEMA_HEADER = "x-ignored-params", "x-ignored-schema-keywords"
MOST, LONGEST = 32, 64  # names, and characters of each
PLAIN = "[]$="  # beside letters, digits and _.-~, which are never escaped


def ignore(request: Request, names: Sequence[str]) -> None:
    """Notes fields of a request that have no effect."""
    request.state.ignored = list(names)


def ignore_also(request: Request, name: str) -> None:
    """Notes one field more."""
    ignore(request, [*getattr(request.state, "ignored", []), name])


def ignore_keywords(request: Request, names: Iterable[str]) -> None:
    """Notes names within JSON schemas that have no effect."""
    known: list[str] = getattr(request.state, "ignored_keywords", [])
    request.state.ignored_keywords = list(dict.fromkeys([*known, *names]))


def add_headers(request: Request, response: Response) -> Response:
    """The response, with the headers where something was ignored."""
    for header, kind in ((HEADER, "ignored"), (SCHEMA_HEADER, "ignored_keywords")):
        names: list[str] = getattr(request.state, kind, [])
        if names:
            response.headers[header] = format_names(names)
    return response


def format_names(names: Sequence[str]) -> str:
    """Names as they may stand in a header."""
    found = [_escape(name) for name in names[:MOST]]
    more = len(names) - MOST
    return ", ".join([*found, f"... ({more} more)"] if more > 0 else found)


def _escape(name: str) -> str:
    """A name without anything that ends a header or an item of it; cut where it is long."""
    cut = name[:LONGEST].encode("utf-8", "surrogatepass")
    return quote(cut, safe=PLAIN) + ("..." if len(name) > LONGEST else "")
