"""The routes, and what becomes of an error in one.

Invariant: every route is in `ROUTES`, with the body it takes; whatever a route raises is answered
in OpenAI's shape, and its words are ours.
"""

import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from flyweight.server.api import about, chat, completions
from flyweight.server.errors import HttpError, status_text, told
from flyweight.server.front import Front
from flyweight.server.guard import Guard
from flyweight.server.sse import ClientGone, reply

Handler = Callable[[Front, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A route: what it answers to, and the body it takes."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[BaseModel] | None = None


ROUTES = (
    Entry("POST", "/v1/chat/completions", chat.chat, "Answer a conversation", chat.ChatBody),
    Entry(
        "POST",
        "/v1/completions",
        completions.completions,
        "Continue prompts",
        completions.CompletionBody,
    ),
    Entry("GET", "/v1/models", about.models, "The models that are served"),
    Entry("GET", "/v1/models/{model:path}", about.model, "One of the models"),
    Entry("GET", "/health", about.health, "Whether the engine lives and gets on"),
    Entry("GET", "/ready", about.ready, "Whether new requests are taken"),
    Entry("GET", "/version", about.version, "The version"),
    Entry("GET", "/server_info", about.server_info, "What the engine was built as"),
    Entry("POST", "/reset_prefix_cache", about.reset_prefix_cache, "Forget what was computed"),
    Entry("GET", "/debug/steps", about.steps, "What each of the last steps computed"),
    Entry("GET", "/debug/kv", about.kv, "Who holds which blocks of K/V"),
)


def make_app(front: Front) -> ASGIApp:
    routes = [
        Route(entry.path, _endpoint(front, entry), methods=[entry.method]) for entry in ROUTES
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _unrouted})
    app.router.redirect_slashes = False
    return Guard(app, front.settings)


def _endpoint(front: Front, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await entry.handler(front, request)
        except ClientGone:
            return Response(status_code=499)
        except Exception as error:
            known = told(error)
            if known.code == "internal_error":
                log(entry, error)
            return reply(known.body(), known.status, known.headers)

    return endpoint


def log(entry: Entry, error: Exception) -> None:
    """Where a mistake of ours is; its words may hold a prompt and are left out."""
    print(f"flyweight: {entry.path} failed: {type(error).__name__}", file=sys.stderr)
    traceback.print_tb(error.__traceback__)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} on this path: {status_text(error.status_code)}"
    body = HttpError(error.status_code, message).body()
    return reply(body, error.status_code, error.headers)
