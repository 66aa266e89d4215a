"""Joins the routes to the guard, reads bodies, and answers errors.

Invariant: an error of a route is answered in the format of its API, with a text of this server.
"""

from collections.abc import Awaitable, Callable

from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from flyweight.errors import RequestError, nearest
from flyweight.server.admission.queue import prepare_and_run
from flyweight.server.api_server import ApiServer, release_models
from flyweight.server.apis.body import read_body
from flyweight.server.apis.openapi import JSON, ApiRoute
from flyweight.server.apis.routes import OLLAMA, ROUTES, find_error_format
from flyweight.server.apis.slo import read_deadlines
from flyweight.server.observability.tracing import RequestTracer
from flyweight.server.transport.errors import HttpError, print_failure, to_http_error
from flyweight.server.transport.guard import RequestGuard
from flyweight.server.transport.keys import ApiKeys
from flyweight.server.transport.replies import ClientGone, add_headers, reply
from flyweight.server.transport.request_log import RequestLog, get_record
from flyweight.validation.untrusted import shown

NOT_JSON = HttpError(
    415,
    "the Content-Type of the body is not application/json; send 'Content-Type: application/json'",
    "Content-Type",
    code="unsupported_media_type",
)


def make_app(server: ApiServer, keys: ApiKeys, tracer: RequestTracer | None = None) -> ASGIApp:
    routes = [
        Route(entry.path, _endpoint(server, entry), methods=[entry.method]) for entry in ROUTES
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _answer_unrouted})
    app.router.redirect_slashes = False
    log = server.log if server.settings.enable_log_requests else None
    open_paths = [entry.path for entry in ROUTES if entry.open]
    guard = RequestGuard(app, server.settings, keys, open_paths, find_error_format)
    paths = {entry.path for entry in ROUTES}
    polled = {entry.path for entry in ROUTES if entry.polled}
    traced = {entry.path for entry in ROUTES if entry.body is not None}
    return RequestLog(guard, server.http, log, paths, polled, tracer, traced)


def _endpoint(server: ApiServer, entry: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        get_record(request.scope).route = entry.path
        if entry.body is not None and entry not in OLLAMA and not _is_json(request):
            return reply(entry.errors(NOT_JSON), NOT_JSON.status)
        work = _handle(server, entry, request)
        try:
            if entry.body is None:
                return add_headers(request, await work)
            seconds = server.settings.request_timeout
            return add_headers(request, await prepare_and_run(server.queue, seconds, request, work))
        except ClientGone:
            return Response(status_code=499)
        except Exception as error:
            known = to_http_error(error)
            if known.code == "internal_error":
                print_failure(f"{entry.path} {get_record(request.scope).id}", error)
            return add_headers(request, reply(entry.errors(known), known.status, known.headers))
        finally:
            release_models(request)

    return endpoint


async def _handle(server: ApiServer, entry: ApiRoute, request: Request) -> Response:
    if entry.body is None:
        return await entry.handler(server, request)
    body = read_body(server.settings, request, await request.body(), entry.body)
    request.scope["deadlines"] = read_deadlines(request, body)
    try:
        return await entry.handler(server, request, body)
    except RequestError:  # of another model than the named one, which may take the request
        if not server.keep_model(request):
            raise
        release_models(request)  # the named one may need its memory
        return await entry.handler(server, request, body)


def _is_json(request: Request) -> bool:
    """Whether the body is declared as JSON, or not declared.  Ollama's routes do not check it, as
    its documentation uses curl's default type.
    """
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


async def _answer_unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = get_route_path(request.scope)
    methods = [entry.method for entry in ROUTES if entry.path == path]
    if methods:
        allowed = f"allowed: {', '.join(sorted(methods))}"
        message = f"{shown(path)} does not take {request.method}; {allowed}"
    else:
        near = nearest(path[:100], {entry.path for entry in ROUTES})
        message = f"there is no route {request.method} {shown(path)}{near}; /docs lists all routes"
    known = HttpError(error.status_code, message)
    return reply(find_error_format(path)(known), error.status_code, error.headers)
