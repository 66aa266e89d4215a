"""A route as data: what it is called by, takes and returns.  Knows no API."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.api_server import ApiServer
from flyweight.server.transport.errors import HttpError, Shape

Handler = Callable[[ApiServer, Request], Coroutine[Any, Any, Response]]
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route: its handler, the type of its body, the type of its reply (in `media`; only JSON has
    a type), and the error format of its API.  An `open` one needs no key.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[BaseModel] | None = None
    reply: Any = dict[str, Any]
    errors: Shape = HttpError.body
    media: str = JSON
    open: bool = False


@dataclass(frozen=True, slots=True)
class ApiTable:
    """The routes of one API."""

    description: str
    routes: tuple[ApiRoute, ...]


ApiTables = Mapping[str, ApiTable]  # by the name of the API
