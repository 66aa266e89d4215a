"""A client that finds out what became of each request.

Invariant: a request has one fate.  An answer is whole if its body ended where HTTP says that it
ends and, of a stream, if its last event came.  What is not whole, was not left by this client and
has no error is lost.  Knows no load.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

ANSWERED, REFUSED, FAILED, LEFT, LOST = FATES = ("answered", "refused", "error", "left", "lost")
PATIENCE = 180.0  # seconds for an answer, above every limit of the server
LARGEST_HEAD = 1 << 16
ERROR_EVENT = b'data: {"error"'
LAST_EVENT = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class SentRequest:
    """`kind` is for the table.  If given, a stream is left after `leave_after` parts of its body,
    and any request `leave_in` seconds after it was sent.
    """

    kind: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    key: str = ""
    leave_after: int = 0
    leave_in: float = 0.0

    @property
    def streamed(self) -> bool:
        return bool(self.body and self.body.get("stream"))

    def encode(self) -> bytes:
        raw = b"" if self.body is None else json.dumps(self.body).encode()
        lines = [
            f"{self.method} {self.path} HTTP/1.1", "host: localhost", "connection: close",
            "content-type: application/json", f"content-length: {len(raw)}",
            *([f"authorization: Bearer {self.key}"] if self.key else []),
        ]  # fmt: skip
        return "\r\n".join([*lines, "", ""]).encode() + raw


@dataclass(slots=True)
class ReceivedAnswer:
    """What has come back so far."""

    status: int = 0
    body: bytes = b""
    parts: int = 0
    whole: bool = False
    left: bool = False
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`code` is that of a refusal or an error, or what was wrong with a lost answer; times are
    seconds of the run.
    """

    kind: str
    fate: str
    status: int
    code: str
    began: float
    ended: float
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send(port: int, request: SentRequest, clock: Callable[[], float]) -> Outcome:
    """Sends a request on a connection of its own."""
    began, answer = clock(), ReceivedAnswer()
    try:
        async with asyncio.timeout(PATIENCE):
            await exchange(port, request, answer)
    except TimeoutError:
        answer.trouble = "no end"
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        answer.trouble = type(error).__name__
    fate, code = judge(answer, streamed=request.streamed)
    return Outcome(request.kind, fate, answer.status, code, began, clock(), answer.body)


async def exchange(port: int, request: SentRequest, answer: ReceivedAnswer) -> None:
    """Raises `OSError`, `EOFError` or `ValueError` where the answer is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LARGEST_HEAD)
    try:
        writer.write(request.encode())
        await writer.drain()
        if request.leave_in:
            await asyncio.sleep(request.leave_in)
            answer.left = True
            return
        head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        answer.status = int(head[0].split(b" ")[1])
        fields = dict(line.partition(b": ")[::2] for line in head[1:] if line)
        if fields.get(b"transfer-encoding") == b"chunked":
            async for part in read_chunks(reader):
                answer.body += part
                answer.parts += 1
                if answer.parts == request.leave_after:
                    answer.left = True
                    return
        else:
            answer.body = await reader.readexactly(int(fields[b"content-length"]))
        answer.whole = True
    except KeyError:
        raise ValueError("a body of unknown length") from None
    finally:
        writer.transport.abort()


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a body.  Raises `EOFError` where it is cut off."""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


def judge(answer: ReceivedAnswer, *, streamed: bool) -> tuple[str, str]:
    """A request's fate and code."""
    if answer.left:
        return LEFT, ""
    if answer.status != 200:
        return (REFUSED, read_code(answer.body)) if answer.whole else (LOST, answer.trouble)
    lines = answer.body.split(b"\n") if streamed else []
    for line in lines:
        if line.startswith(ERROR_EVENT):
            return FAILED, read_code(line.removeprefix(b"data: "))
    if not answer.whole:
        return LOST, answer.trouble
    if streamed and LAST_EVENT not in lines:
        return LOST, "no last event"
    return ANSWERED, ""


def read_code(body: bytes) -> str:
    """The code of an error; "unknown" for a body that has none."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
