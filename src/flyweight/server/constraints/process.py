"""The process that compiles schemas, regexes and grammars, and checks finished texts: what uses too
much time or memory ends this process only.

Invariant: one answer per question, in order; its memory is limited.  Ends when its parent is gone.
Knows no model and no requests.
"""

import os
import resource
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, byte_vocabulary
from flyweight.sampling.schema_validation import make_validator

NICE = 5  # behind the engine: about a third of its share of a busy core
LENGTH = struct.Struct("<I")


class ValidatorSetup(msgspec.Struct, array_like=True):
    """The special tokens that a grammar may name, and the memory limit of one question."""

    special: list[bytes]
    memory: int


def pack(value: Any) -> bytes:
    body = msgspec.msgpack.encode(value)
    return LENGTH.pack(len(body)) + body


def read(stream: BinaryIO) -> bytes:
    """One frame; empty at the end."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""


def answer_question(
    compiler: Compiler, outputs: dict[str, Any], text: str | None = None
) -> dict[str, Any]:
    """Compiles a constraint, or says whether a finished text satisfies it.  Raises
    `RequestError`.
    """
    constraint = StructuredOutputs(**outputs)
    if text is not None:
        return {"valid": make_validator(constraint)(text)}
    compiler.compile(constraint)
    if constraint.validated:
        make_validator(constraint)
    return {}


def main() -> int:
    """Answers on stdout: the data of an error, or nothing."""
    with suppress(OSError):  # if memory is used up, the system kills this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    os.nice(NICE)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    begin = msgspec.msgpack.decode(read(incoming), type=ValidatorSetup)
    compiler = Compiler(byte_vocabulary(begin.special))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + begin.memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while question := read(incoming):
        try:
            answer = answer_question(compiler, **msgspec.msgpack.decode(question))
        except RequestError as error:
            answer = error.data
        outgoing.write(pack(answer))
        outgoing.flush()
    return 0


if __name__ == "__main__":
    import signal

    # Ctrl-C, `timeout` and systemd reach the whole group; when this ends is the front end's to say.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(main())
