"""Sends a load and waits for its answers: open loop by the times of a pace or a trace, closed loop
by how many may be open at once.

Invariant: a body is made before its clock starts; an answer's clock starts before its connection is
taken.  Nothing is done per chunk but reading it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flyweight import __version__
from flyweight.bench.serving.client_apis import ClientApi, read_reason
from flyweight.bench.serving.connection import ConnectionPool, ResponseReader, ServerAddress
from flyweight.bench.serving.drafts import DraftStatistics
from flyweight.bench.serving.requests import LoadRequest, RequestManner, StreamedAnswer
from flyweight.errors import ConfigError

RETRY = 0.25  # seconds between looks for a server
PATIENCE = 10  # seconds for a page
LOADING = 503
ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A server, how it is spoken to, and headers every request has."""

    place: ServerAddress
    api: ClientApi
    manner: RequestManner
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def make_request(self, request: LoadRequest, turn: int, name: str) -> bytes:
        """A whole request, as bytes."""
        body = msgspec.json.encode(self.api.make_body(request, self.manner, turn))
        more = {"content-type": "application/json", "x-request-id": name}
        path = self.path or self.api.path
        return make_head(self.place, "POST", path, {**more, **self.headers}, len(body)) + body


@dataclass(frozen=True, slots=True)
class RequestSchedule:
    """Requests and when they are sent, at most `most` at once; requests' names begin with `prefix`.
    Whose `turn` it is among several models is said for each, or they take turns; an answer that is
    not whole after `patience` seconds is a failure.
    """

    requests: Sequence[LoadRequest]
    times: Sequence[float]
    most: int | None = None
    prefix: str = "bench-"
    turns: Sequence[int] = ()
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load came to: its answers in the order of the requests, the seconds it took, and the
    processor time this process used meanwhile; when it began, in seconds since 1970, and what
    became of the server's draft tokens.
    """

    load: RequestSchedule
    answers: Sequence[StreamedAnswer]
    seconds: float
    processor: float
    began: float = 0.0
    drafts: DraftStatistics | None = None


def make_head(
    place: ServerAddress, method: str, path: str, headers: Mapping[str, str], length: int = 0
) -> bytes:
    lines = [
        f"{method} {place.before}{path} HTTP/1.1",
        f"host: {str(place).split('/')[2]}",
        f"user-agent: flyweight-bench/{__version__}",
        f"content-length: {length}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


async def play(
    target: Target, load: RequestSchedule, report_progress: ProgressCallback
) -> LoadResult:
    """Sends all of it; `tell` gets the number of answers."""
    lines = ConnectionPool(target.place)
    gate = asyncio.Semaphore(load.most or max(1, len(load.requests)))
    answers = [StreamedAnswer() for _ in load.requests]
    done = 0

    async def one(i: int) -> None:
        nonlocal done
        async with gate:
            turn = load.turns[i] if load.turns else i
            raw = target.make_request(load.requests[i], turn, f"{load.prefix}{i}")
            await exchange_within(load.patience, lines, raw, ResponseReader(target.api, answers[i]))
        done += 1
        report_progress(done, len(load.requests))

    start, processor, began = time.perf_counter(), time.process_time(), time.time()
    try:
        async with asyncio.TaskGroup() as group:
            for i, at in enumerate(load.times):
                wait = start + at - time.perf_counter()
                if wait > 0:
                    await asyncio.sleep(wait)
                group.create_task(one(i))
        seconds = time.perf_counter() - start
        return LoadResult(load, answers, seconds, time.process_time() - processor, began)
    finally:
        lines.close()


async def exchange_within(
    patience: float | None, lines: ConnectionPool, raw: bytes, reading: ResponseReader
) -> None:
    """One request, for so long at most."""
    try:
        async with asyncio.timeout(patience):
            await exchange(lines, raw, reading)
    except TimeoutError:
        reading.answer.end = time.perf_counter()
        reading.answer.fail(f"no whole answer within {patience:g} s; --request-timeout sets that")


async def exchange(lines: ConnectionPool, raw: bytes, reading: ResponseReader) -> None:
    """One request on one connection; what goes wrong is in the answer."""
    answer = reading.answer
    answer.start = time.perf_counter()
    try:
        line = await lines.take()
    except OSError as error:
        answer.end = time.perf_counter()
        answer.fail(f"no connection to {lines.place}: {describe_error(error)}")
        return
    await line.send(raw, reading)
    lines.give(line)
    if line.stale:
        begun, answer.error = answer.start, ""
        await exchange(lines, raw, reading)
        answer.start = begun


async def get(place: ServerAddress, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
    """Status and JSON of a page, None where that is none.  Raises `OSError`."""
    status, body = await get_page(place, path, headers)
    try:
        return status, msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return status, None


async def get_page(
    place: ServerAddress, path: str, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """Status and bytes of a page.  Raises `OSError`."""
    lines = ConnectionPool(place)
    reading = ResponseReader(None, StreamedAnswer())
    line = await lines.take()
    try:
        await line.send(make_head(place, "GET", path, headers), reading)
    finally:
        line.close()
    if reading.answer.error:
        raise OSError(reading.answer.error)
    return reading.status, bytes(reading.body)


async def read_draft_statistics(
    place: ServerAddress, headers: Mapping[str, str]
) -> DraftStatistics | None:
    """What a server's metrics say of its draft tokens; None where there is nothing to be read."""
    try:
        status, found = await asyncio.wait_for(get_page(place, "/metrics", headers), PATIENCE)
    except (OSError, TimeoutError):
        return None
    return DraftStatistics.of(found.decode("utf-8", "replace")) if status == 200 else None


async def wait_until_ready(
    place: ServerAddress, headers: Mapping[str, str], seconds: float
) -> list[dict[str, Any]]:
    """The models a server lists, once it is there and has loaded.  Raises `ConfigError` where it is
    not within so many seconds.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            # some list their models while they still load them
            status, shown = await asyncio.wait_for(get(place, "/health", headers), PATIENCE)
            if status != LOADING:
                status, shown = await asyncio.wait_for(get(place, "/v1/models", headers), PATIENCE)
            why = f"HTTP {status}: {read_reason(msgspec.json.encode(shown))}"
            if status in (401, 403):
                raise ConfigError(f"{place} refuses us: {why}; a key: --header, or OPENAI_API_KEY")
            if status != LOADING:
                data = shown.get("data") if isinstance(shown, dict) else None
                found = data if status == 200 and isinstance(data, list) else []
                return [card for card in found if isinstance(card, dict)]
        except TimeoutError:
            why = "it takes the connection and does not answer"
        except OSError as error:
            why = describe_error(error)
        if time.monotonic() + RETRY > until:
            waited = f" after {seconds:g} s" if seconds else "; --ready-check-timeout-sec waits"
            raise ConfigError(f"no server at {place}: {why}{waited}")
        await asyncio.sleep(RETRY)


def describe_error(error: OSError) -> str:
    """What the system says, without the address it repeats."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return (error.strerror or str(error)).lower()
