"""Errors as clients see them: OpenAI's format, one line of safe text.

Invariant: a message is this server's, or names the client's own value; it never has a path, an
address or the text of another request.
"""

import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flyweight.errors import EngineError, RequestError
from flyweight.server.engine_client import EngineDown

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
CODES = {  # of refusals that name none
    400: "bad_request",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_bytes_limit",
    415: "unsupported_media_type",
    431: "header_limit",
    500: "internal_error",
}
FOLDERS = re.compile(r"(?<![\w.:/-])~?/(?:[^\s/:]*/)+")  # of a path: clients see the file's name
DOWN = "engine_down"
OURS = "the server failed on this request; its log has the place"


def hide_folders(text: str) -> str:
    """The text, without the folders of paths in it."""
    return FOLDERS.sub("", text)


class HttpError(Exception):
    """A refusal with its status; `param` names the field, `code` is by default that of `CODES`."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code = param, code or CODES.get(status, "bad_request")
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return KINDS.get(self.status, fallback)

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


Shape = Callable[[HttpError], dict[str, Any]]  # the error format of an API


def make_timeout_error(seconds: float) -> HttpError:
    """The error of a request that was not answered in time."""
    words = f"not answered within {seconds:g} seconds (--request-timeout)"
    return HttpError(504, words, code="deadline")


def to_http_error(error: BaseException) -> HttpError:
    """The error that a client sees for `error`."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, RequestError):
        return HttpError(400, str(error), error.path or None, error.code)
    down = isinstance(error, EngineError) and error.code == DOWN  # of one replica
    if down or isinstance(error, EngineDown):
        return HttpError(503, str(error), code=DOWN, headers={"retry-after": "2"})
    if isinstance(error, EngineError):
        return HttpError(500, str(error), code="engine_error")
    return HttpError(500, OURS, code="internal_error")


def print_failure(place: str, error: BaseException) -> None:
    """Prints where a bug of the server is; the exception's text may hold a prompt and is left
    out.
    """
    with suppress(OSError):  # a full disk is no reason to fail
        print(f"flyweight: {place} failed: {type(error).__name__}", file=sys.stderr)
        traceback.print_tb(error.__traceback__)
