"""A proxy in front of a prefill server and a decode server of the same model.

    flyweight serve --port 8301 --prefix-cache-dir a --prefix-cache-secret-file secret \
        --prefix-cache-listen 127.0.0.1:8401
    flyweight serve --port 8302 --prefix-cache-dir b --prefix-cache-secret-file secret \
        --prefix-cache-peers 127.0.0.1:8401
    python examples/prefill_decode_proxy.py --prefill 127.0.0.1:8301 --decode 127.0.0.1:8302

A long prompt is sent to the prefill server with `max_tokens=1`, then the request to the decode
server, which fetches the prompt's blocks, and computes what it cannot fetch.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from flyweight.errors import ConfigError
from flyweight.routing.handoff import Handoff, HandoffOptions, PrefillHandoff
from flyweight.routing.keys import RoutingKeys

ROUTES = ("/v1/completions", "/v1/chat/completions")
RENDERED = ("model", "prompt", "messages", "tools", "documents", "chat_template_kwargs",
            "add_generation_prompt", "continue_final_message", "add_special_tokens")  # fmt: skip
# What is of the answer only, and may not go with one token.
LEFT_OUT = ("stream", "stream_options", "n", "best_of", "min_tokens", "logprobs", "top_logprobs",
            "max_completion_tokens", "response_format")  # fmt: skip
WHOLE = ("echo", "prompt_logprobs")  # all tokens of the prompt are computed where they are wanted
OURS = ("connection", "content-length", "host")
ERRORS = (ValueError, KeyError, TypeError, IndexError, OSError)  # of a server and its answers


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]"), int(port))


class HttpRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    async def send(self, server: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which the request was sent; its answer ends with the connection."""
        reader, writer = await asyncio.open_connection(*server)
        kept = {name: value for name, value in self.headers.items() if name not in OURS}
        kept |= {"host": f"{server.host}:{server.port}", "connection": "close",
                 "content-length": str(len(self.body))}  # fmt: skip
        head = f"{self.method} {self.path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in kept.items())
        writer.write(head.encode("latin-1") + b"\r\n" + self.body)
        await writer.drain()
        return reader, writer

    async def post(self, server: Address, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status and JSON of another request with these headers."""
        other = HttpRequest("POST", path, self.headers, json.dumps(body).encode())
        reader, writer = await other.send(server)
        try:
            head, _, raw = (await reader.read()).partition(b"\r\n\r\n")
            return int(head.split(b" ", 2)[1]), json.loads(raw)
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> HttpRequest:
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    named = (line.partition(":") for line in rest if line)
    headers = {name.lower(): value.strip() for name, _, value in named}
    if "transfer-encoding" in headers or "expect" in headers:
        raise ValueError("a body is sent with a content-length, and at once")
    size = int(headers.get("content-length", 0))
    method, path, _ = first.split(" ", 2)
    return HttpRequest(method, path, headers, await reader.readexactly(size))


class Proxy:
    def __init__(self, prefill: Address, decode: Address, options: HandoffOptions) -> None:
        self.prefill, self.decode, self.options = prefill, decode, options
        self.handoff = PrefillHandoff(options)
        self.keys = RoutingKeys("", os.urandom(32), options.block_size)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client; what is done for it ends when it leaves."""
        try:
            request = await read_request(reader)
        except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            refuse(writer, 400, f"the request cannot be read: {error}")
            return
        work = asyncio.create_task(self.answer(request, writer))
        left = asyncio.create_task(reader.read())
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, left):
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task
        writer.close()

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        if request.method == "POST" and request.path in ROUTES:
            await self.prepare(request)
        try:
            source, to_decode = await request.send(self.decode)
        except OSError as error:
            refuse(writer, 502, f"the decode server cannot be reached: {error}")
            return
        try:
            while piece := await source.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        finally:
            to_decode.close()

    async def prepare(self, request: HttpRequest) -> None:
        """Has the prompt computed by the prefill server, if it is worth it."""
        if len(request.body) < self.options.threshold:
            return  # a token has a byte at least
        try:
            body = json.loads(request.body)
            if not isinstance(body, dict) or any(body.get(name) for name in WHOLE):
                return
            tokens = await self.count(request, body)
            salt, model = str(body.get("cache_salt") or ""), str(body.get("model") or "")
            chain = self.keys.make_keys(tokens, salt, model)
        except ERRORS:
            return  # the decode server says what is wrong
        handoff = self.handoff.begin(chain, len(tokens))
        if handoff is not None:
            await self.hand_over(handoff, request, body)

    async def count(self, request: HttpRequest, body: dict[str, Any]) -> list[int]:
        """The ids of a prompt."""
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            return [int(one) for one in prompt]  # several prompts are no ints
        wanted = {name: body[name] for name in RENDERED if name in body}
        _, reply = await request.post(self.decode, "/tokenize", wanted)
        return list(reply["tokens"])

    async def hand_over(self, handoff: Handoff, request: HttpRequest, body: dict[str, Any]) -> None:
        kept = {name: value for name, value in body.items() if name not in LEFT_OUT}
        try:
            async with asyncio.timeout(handoff.limit):
                one_token = {**kept, "max_tokens": 1}
                status, reply = await request.post(self.prefill, request.path, one_token)
            if status == 429 or status >= 500:
                raise ValueError(f"it answered {status}")
            usage: dict[str, Any] = reply["usage"] if status == 200 else {"prompt_tokens": 0}
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            self.handoff.finish(handoff, usage["prompt_tokens"] - cached)
        except asyncio.CancelledError:
            self.handoff.cancel(handoff)
            raise
        except ERRORS as error:
            self.handoff.fail(handoff)
            why = str(error) or f"no answer in {handoff.limit:.1f} s"
            print(f"the prefill server was given up: {why}", file=sys.stderr, flush=True)


def refuse(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message, "code": status}}).encode()
    writer.write(b"HTTP/1.1 %d Error\r\ncontent-type: application/json\r\n" % status)
    writer.write(b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
    writer.close()


async def run(proxy: Proxy, port: int) -> None:
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port)
    host, port = server.sockets[0].getsockname()
    print(f"the proxy listens on http://{host}:{port}", file=sys.stderr, flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("--prefill", "--decode"):
        parser.add_argument(name, type=Address.parse, required=True, metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=8300)
    for name, value in asdict(HandoffOptions()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    prefill, decode, port = given.pop("prefill"), given.pop("decode"), given.pop("port")
    try:
        asyncio.run(run(Proxy(prefill, decode, HandoffOptions(**given)), port))
    except (ConfigError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
