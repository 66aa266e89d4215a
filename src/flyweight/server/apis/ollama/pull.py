"""Ollama's /api/pull: a model of the Hub, with the progress of its download as lines of JSON.

Invariant: refused unless the operator allows it.  A download whose client has left ends, and goes
on from there when it is requested again.  No line has a folder of this machine.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator
from contextlib import suppress
from hashlib import sha256
from typing import Any

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight.describe import SilentListener
from flyweight.errors import FlyweightError, RequestError
from flyweight.server.admission.queue import Preparation
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.fields import UNLESS_FALSE, Fields
from flyweight.server.apis.ollama.handlers import make_error
from flyweight.server.apis.ollama.schema import Unset, require_name, resolve_name
from flyweight.server.transport.errors import OURS, HttpError, print_failure
from flyweight.server.transport.replies import EventStream, encode, reply, run_while_connected

MEDIA = "application/x-ndjson"
SHORT = 12  # characters of a digest that a status shows


class PullBody(Fields):
    """A model to be fetched; `name` is the old name of `model`."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [require_name(name) for name in ("model", "name")]},
    )

    model: str = ""
    name: str = ""
    stream: bool = True
    insecure: bool = Field(
        False,
        description="Has no effect: HF_ENDPOINT names the Hub.",
        json_schema_extra=UNLESS_FALSE,
    )
    username: Unset = Field("", description="HF_TOKEN of the server is used.")
    password: Unset = Field("", description="HF_TOKEN of the server is used.")


class PullCancelled(Exception):
    """The client has left."""


class PullProgress(SilentListener):
    """Receives the progress of a download in its thread, and passes it to the event loop."""

    def __init__(self) -> None:
        self.state = (0, 0)  # bytes that have come, and all of them
        self.news = asyncio.Event()
        self.cancelled = False
        self._loop = asyncio.get_running_loop()

    def note(self, message: str) -> None:
        self._check()

    def show_download(self, file: str, done: int, total: int) -> None:
        self._check()
        self.state = done, total
        self._loop.call_soon_threadsafe(self.news.set)

    def _check(self) -> None:
        """Ends the download whose client has left."""
        if self.cancelled:
            raise PullCancelled


class PullJob:
    """One pull: the lines of its progress.  The digest is that of the name which the model is
    `served` under, as in /api/tags.
    """

    def __init__(self, server: ApiServer, name: str, served: str) -> None:
        self.server, self.name = server, name
        self.progress = PullProgress()
        self.digest = sha256(served.encode()).hexdigest()
        self._shown = (0, 0)

    def cancel(self) -> None:
        self.progress.cancelled = True

    async def run(self) -> None:
        """Raises `HttpError`."""
        try:
            await self.server.updates.pull(self.name, self.progress)
        except FlyweightError as error:
            raise HttpError(500, hide_cache(str(error)), "model", code="pull_failed") from None

    async def make_lines(self) -> AsyncGenerator[bytes]:
        yield write_line(status="pulling manifest")
        task = asyncio.ensure_future(self.run())
        try:
            while not task.done():
                news = asyncio.ensure_future(self.progress.news.wait())
                await asyncio.wait({task, news}, return_when=FIRST_COMPLETED)
                news.cancel()
                self.progress.news.clear()
                for line in self._report():
                    yield line
            task.result()
        except HttpError as error:
            yield encode(make_error(error)) + b"\n"
            return
        except Exception as error:
            print_failure("/api/pull", error)
            yield write_line(error=OURS)
            return
        finally:
            self.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        yield write_line(status="writing manifest")
        yield write_line(status="success")

    def _report(self) -> list[bytes]:
        """Lines for what is new.  What has come whole is verified before the download ends."""
        done, total = state = self.progress.state
        if state == self._shown:
            return []
        self._shown = state
        lines = [
            write_line(
                status=f"pulling {self.digest[:SHORT]}",
                digest=f"sha256:{self.digest}",
                total=total,
                completed=done,
            )
        ]
        return [*lines, write_line(status="verifying sha256 digest")] if done == total else lines


async def pull(server: ApiServer, request: Request, body: PullBody) -> Response:
    if not (body.model or body.name):
        raise RequestError("is missing", "model", code="missing_field")
    if not server.settings.allow_pull:
        raise HttpError(403, "models are not pulled here; --allow-pull allows it", "model")
    name = resolve_name(server.serves, body.model or body.name)
    found = server.updates.parse(name)  # refused before the stream begins
    job = PullJob(server, name, name if server.serves(name) else str(found))
    if body.stream:
        return EventStream(job.make_lines(), job.cancel, MEDIA)
    preparation = request.scope.get("preparation")
    if isinstance(preparation, Preparation):
        preparation.end()  # it may take longer than --request-timeout
    try:
        await run_while_connected(request, job.run())
    finally:
        job.cancel()
    return reply({"status": "success"})


def write_line(**fields: Any) -> bytes:
    return encode(fields) + b"\n"


def hide_cache(text: str) -> str:
    """An error's text without the folder of the Hub's cache."""
    from flyweight.weights.hub.cache import find_cache_folder  # its client takes long to import

    return text.replace(str(find_cache_folder()), "the Hub's cache")
