"""What a client is told when something is wrong: OpenAI's shape, one line that is fit to show.

Invariant: a message is ours, or a refusal that names the client's own value; never a path, an
address or another's text.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flyweight.errors import EngineError, RequestError
from flyweight.server.engine_client.client import EngineDown

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
OURS = "the server failed on this request; its log has the place"


class HttpError(Exception):
    """A refusal with its status; `param` names the field."""

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
        self.param, self.code = param, code
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


Shape = Callable[[HttpError], dict[str, Any]]  # how a dialect writes errors


def make_timeout_error(seconds: float) -> HttpError:
    """Of a request that was not answered in time."""
    words = f"not answered within {seconds:g} seconds (--request-timeout)"
    return HttpError(504, words, code="deadline")


def to_http_error(error: BaseException) -> HttpError:
    """What a client is told of `error`."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, RequestError):
        return HttpError(400, str(error), error.path or None, error.code or None)
    if isinstance(error, EngineDown):
        return HttpError(503, str(error), code="engine_down", headers={"retry-after": "2"})
    if isinstance(error, EngineError):
        return HttpError(500, str(error), code="engine_error")
    return HttpError(500, OURS, code="internal_error")


def print_failure(place: str, error: BaseException) -> None:
    """Where a mistake of ours is; its words may hold a prompt and are left out."""
    with suppress(OSError):  # a full disk is no reason to fail
        print(f"flyweight: {place} failed: {type(error).__name__}", file=sys.stderr)
        traceback.print_tb(error.__traceback__)
