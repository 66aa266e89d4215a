"""The example proxy between servers of the test's own: what it sends, and what it gives up."""

import asyncio
import importlib.util
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flyweight.routing.handoff import HandoffOptions

FILE = Path(__file__).parents[2] / "examples" / "prefill_decode_proxy.py"
LONG = {"prompt": "a" * 50, "max_tokens": 9, "stream": True, "n": 2, "cache_salt": "tenant"}
USAGE = {"usage": {"prompt_tokens": 50, "prompt_tokens_details": None}}
Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


@pytest.fixture
def example() -> Any:
    spec = importlib.util.spec_from_file_location("prefill_decode_proxy", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Server:
    """Takes one request a connection; `log` has their paths and bodies, `left` those whose client
    was gone before the answer.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.log: list[tuple[str, Any]] = []
        self.left = 0

    async def start(self) -> tuple[str, int]:
        self.server = await asyncio.start_server(self.take, "127.0.0.1", 0)
        address: tuple[str, int] = self.server.sockets[0].getsockname()
        return address

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = await reader.readexactly(size)
        path = head.split(" ")[1]
        self.log.append((path, json.loads(body) if body.startswith(b"{") else body))
        assert "connection: close" in head
        if path == "/tokenize":
            await reply(writer, json.dumps({"tokens": list(range(50))}).encode())
            return
        work = asyncio.ensure_future(self.answer(writer, body))
        gone = asyncio.ensure_future(reader.read())
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        self.left += not work.done()
        work.cancel()
        gone.cancel()
        writer.close()


async def reply(writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> None:
    writer.write(b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
    writer.close()


async def prefill(writer: asyncio.StreamWriter, body: bytes) -> None:
    await reply(writer, json.dumps(USAGE).encode())


async def fail(writer: asyncio.StreamWriter, body: bytes) -> None:
    await reply(writer, b"{}", 503)


async def hang(writer: asyncio.StreamWriter, body: bytes) -> None:
    await asyncio.Event().wait()


async def decode(writer: asyncio.StreamWriter, body: bytes) -> None:
    """An answer in two parts, with no length."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n")
    await asyncio.sleep(0)
    writer.write(b"data: 2\n\n")
    await writer.drain()


class Split:
    """A proxy between two servers; `send` returns all that comes back."""

    def __init__(self, example: Any, answer: Answer = prefill, rate: float = 1000.0) -> None:
        self.example, self.options = example, HandoffOptions(threshold=40, block_size=8, rate=rate)
        self.prefill, self.decode = Server(answer), Server(decode)

    async def start(self) -> None:
        servers = [await one.start() for one in (self.prefill, self.decode)]
        addresses = [self.example.Address(*one) for one in servers]
        self.proxy = self.example.Proxy(*addresses, self.options)
        server = await asyncio.start_server(self.proxy.serve, "127.0.0.1", 0)
        self.address = server.sockets[0].getsockname()
        self.server = server

    async def open(self, body: Any, path: str = "/v1/completions") -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(*self.address)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: k\r\n"
        writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        return reader, writer

    async def send(self, body: Any, path: str = "/v1/completions") -> bytes:
        reader, writer = await self.open(body, path)
        found: bytes = await reader.read()
        writer.close()
        return found


def test_a_long_prompt_is_computed_first(example: Any) -> None:
    async def run() -> None:
        split = Split(example)
        await split.start()
        assert (await split.send(LONG)).endswith(b"data: 1\n\ndata: 2\n\n")
        one_token = {"prompt": "a" * 50, "max_tokens": 1, "cache_salt": "tenant"}
        assert split.prefill.log == [("/v1/completions", one_token)]
        names = [path for path, _ in split.decode.log]
        assert names == ["/tokenize", "/v1/completions"] and split.decode.log[-1][1] == LONG
        await split.send(LONG)
        assert len(split.prefill.log) == 1, "the decode server has it now"
        await split.send({**LONG, "cache_salt": "another"})
        ids = {"prompt": list(range(100, 150))}
        await split.send(ids)
        assert [body["max_tokens"] for _, body in split.prefill.log] == [1, 1, 1]
        assert split.proxy.handoff.outstanding == 0

    asyncio.run(run())


@pytest.mark.parametrize("body", [
    {"prompt": "short"},
    {**LONG, "echo": True},
    {"prompt": ["a" * 50, "b" * 50]},
    b"x" * 60,
    [LONG],
])  # fmt: skip
def test_other_bodies_go_to_the_decode_server_alone(example: Any, body: Any) -> None:
    async def run() -> None:
        split = Split(example)
        await split.start()
        assert b"data: 2" in await split.send(body)
        assert b"data: 2" in await split.send(LONG, "/v1/embeddings")
        assert split.prefill.log == []

    asyncio.run(run())


def test_a_prefill_server_that_hangs_is_given_up(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        split = Split(example, hang)
        await split.start()
        for prompt in range(3):
            assert b"data: 2" in await split.send({"prompt": list(range(prompt, prompt + 50))})
        assert len(split.prefill.log) == 1, "it is left alone for a while"

    asyncio.run(run())
    assert capsys.readouterr().err.count("was given up: no answer in 1.1") == 1


def test_a_prefill_server_that_fails_costs_nothing(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        split = Split(example, fail)
        await split.start()
        assert b"data: 2" in await split.send(LONG)
        split.prefill.server.close()
        split.proxy.handoff = type(split.proxy.handoff)(split.options)
        assert b"data: 2" in await split.send(LONG)

    asyncio.run(run())
    said = capsys.readouterr().err
    assert "it answered 503" in said and "Connect call failed" in said


def test_a_client_that_leaves_ends_the_prefill(example: Any) -> None:
    async def run() -> None:
        split = Split(example, hang, rate=0.1)
        await split.start()
        _, writer = await split.open(LONG)
        while not split.prefill.log:
            await asyncio.sleep(0.01)
        writer.close()
        while not split.prefill.left:
            await asyncio.sleep(0.01)
        assert split.proxy.handoff.outstanding == 0
        assert [path for path, _ in split.decode.log] == ["/tokenize"]

    asyncio.run(run())


def test_no_decode_server_is_an_error(example: Any) -> None:
    async def run() -> None:
        split = Split(example)
        await split.start()
        split.decode.server.close()
        await split.decode.server.wait_closed()
        assert (await split.send({"prompt": "short"})).startswith(b"HTTP/1.1 502 ")

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"])
def test_what_cannot_be_read_is_refused(
    example: Any, capsys: pytest.CaptureFixture[str], sent: bytes
) -> None:
    async def run() -> None:
        nowhere = example.Address("127.0.0.1", 1)
        proxy = example.Proxy(nowhere, nowhere, HandoffOptions())
        serving = asyncio.create_task(example.run(proxy, 0))
        while not (said := capsys.readouterr().err):
            await asyncio.sleep(0.01)
        port = int(said.partition("listens on http://127.0.0.1:")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        serving.cancel()

    asyncio.run(run())
