"""LM Studio's `ttl` in requests of OpenAI's API: how long their model stays loaded.

Invariant: the effect is that of Ollama's `keep_alive`; where there is none, the field is listed as
ignored.
"""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request

from flyweight.server.api_server import ApiServer
from flyweight.server.transport.replies import ignore_also

TEXT = "Seconds that the model stays loaded while idle.  A server's only model always stays."
IdleTime = Annotated[float | None, Field(ge=0, lt=2**31, description=TEXT)]


def apply_idle_time(
    server: ApiServer, request: Request, name: str | None, seconds: float | None
) -> None:
    """Sets it from now on for the model of that name, one of several that is served."""
    if seconds is None:
        return
    if len(server.directory.entries) > 1:
        server.directory.keep(server.directory.find(name), seconds)
    else:
        ignore_also(request, "ttl")
