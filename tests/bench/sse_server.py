"""A server of event streams whose every byte is written down beforehand."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

DROP = -1.0  # the connection is closed
PATIENCE = 60.0  # seconds for what should take none


@dataclass(frozen=True)
class Until:
    """Waits until so many requests have been under way."""

    active: int


Step = bytes | float | Until  # bytes are sent, seconds are waited


def data(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text(word: str, finish: str | None = None) -> bytes:
    """A chunk of /v1/completions."""
    choice = {"index": 0, "text": word, "logprobs": None, "finish_reason": finish}
    return data({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})


def delta(finish: str | None = None, **fields: Any) -> bytes:
    """A chunk of /v1/chat/completions."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return data({"object": "chat.completion.chunk", "choices": [choice]})


def usage(prompt: int, tokens: int) -> bytes:
    return data({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}})


DONE = data(b"[DONE]")


def stream(*steps: Step) -> list[Step]:
    """Events as one chunked answer."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    found: list[Step] = [head]
    found += [b"%x\r\n%s\r\n" % (len(s), s) if isinstance(s, bytes) else s for s in steps]
    return [*found, b"0\r\n\r\n"]


def page(value: Any, status: str = "200 OK") -> list[Step]:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return [head.encode() + b"\r\n\r\n" + body]


def words(body: dict[str, Any]) -> list[Step]:
    """As many words as were requested."""
    count = body["max_tokens"]
    length = len(body["prompt"])
    return stream(*[text(" w")] * count, usage(length, count), DONE)


@dataclass
class Fake:
    """Its requests, how many at once, and how many connections there were."""

    port: int = 0
    requested: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    connections: int = 0
    active: int = 0
    most: int = 0

    @property
    def bodies(self) -> list[Any]:
        return [body for path, _, body in self.requested if body is not None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


Plan = Callable[[dict[str, Any]], Sequence[Step]]
MODELS = {"object": "list", "data": [{"id": "fake", "max_model_len": 4096}]}


@contextmanager
def serving(
    plan: Plan = words, models: Any = MODELS, status: str = "200 OK", mute: str = "/none"
) -> Iterator[Fake]:
    """A server that answers each request by `plan`, in a thread of its own; who asks for the page
    `mute` loses the connection.
    """
    fake, loop = Fake(), asyncio.new_event_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake.connections += 1
        try:
            while True:
                await answered(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = lines[0].split(" ")
        body = json.loads(raw) if raw else None
        fake.requested.append((path, headers, body))
        if path == mute:
            raise ConnectionResetError
        steps = page(models, status) if method == "GET" else plan(body)
        fake.active += method == "POST"
        fake.most = max(fake.most, fake.active)
        try:
            await send(writer, steps, fake)
        finally:
            fake.active -= method == "POST"

    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    fake.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        server.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def send(writer: asyncio.StreamWriter, steps: Sequence[Step], fake: Fake) -> None:
    for step in steps:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif isinstance(step, Until):
            async with asyncio.timeout(PATIENCE):
                while fake.most < step.active:
                    await asyncio.sleep(0.005)
        elif step == DROP:
            raise ConnectionResetError
        else:
            await asyncio.sleep(step)
