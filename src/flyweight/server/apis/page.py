"""The page at `/`: a chat and a dashboard, as files that a browser loads.

Invariant: the files hold no data of the server and need no key; what they show is fetched from
other routes, which may need one.  The policy allows scripts, styles and requests of this server
only, no inline script, and no HTML made from text.
"""

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.api_server import ApiServer
from flyweight.server.apis.openapi import ApiRoute

FOLDER = files("flyweight.server") / "page"
INDEX = "index.html"
KINDS = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # modules of two versions do not fit together
}


async def get_page_file(server: ApiServer, request: Request) -> Response:
    name = request.url.path.rsplit("/", 1)[1] or INDEX
    return Response(read_file(name), 200, HEADERS, KINDS[name.rsplit(".", 1)[1]])


@cache
def read_file(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def list_files() -> list[str]:
    """The files that the page loads."""
    names = sorted(entry.name for entry in FOLDER.iterdir())
    return [name for name in names if name != INDEX and name.rpartition(".")[2] in KINDS]


def make_routes() -> tuple[ApiRoute, ...]:
    """`/` and a route for each file."""
    index = ApiRoute("GET", "/", get_page_file, "A chat and a dashboard", media=KINDS["html"],
                     open=True)  # fmt: skip
    loaded = (
        ApiRoute("GET", f"/page/{name}", get_page_file, "Of the page at /",
                 media=KINDS[name.rsplit(".", 1)[1]], open=True)
        for name in list_files()
    )  # fmt: skip
    return (index, *loaded)
