"""How peers are named and described: other engines that are measured on the same file.

Invariant: a peer is its name, `=FILE` where it needs another file of the same weights, and flags of
its own: `llama.cpp -fa off`, `openvino=model-f16.gguf`.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flyweight.bench.ours import TimedRun
from flyweight.bench.workloads import Workload
from flyweight.errors import ConfigError, FlyweightError, nearest

PACKAGES = {
    "llama.cpp": "llama-cpp-python",
    "openvino": "openvino-genai",
    "transformers": "transformers torch",
}
KINDS = (*PACKAGES, "ik_llama.cpp")


class PeerError(FlyweightError):
    """A peer that cannot run the requested test."""


@dataclass(frozen=True, slots=True)
class PeerArgument:
    """A peer as the command line names it."""

    kind: str
    file: str = ""
    flags: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name, file and flags: what a row is known by."""
        file = f"={os.path.basename(self.file)}" if self.file else ""
        return " ".join((self.kind + file, *self.flags))

    @classmethod
    def of(cls, text: str) -> "PeerArgument":
        """Raises `ConfigError`."""
        try:
            first, *flags = shlex.split(text) or [""]
        except ValueError as error:
            raise ConfigError(f"vs = {text!r}: {error}") from None
        kind, _, file = first.partition("=")
        if kind not in KINDS:
            raise ConfigError(
                f"vs = {kind!r} is not a known peer; allowed: {', '.join(KINDS)}"
                f"{nearest(kind, KINDS)}"
            )
        if file and not os.path.exists(file):
            raise ConfigError(f"vs = {text!r}: there is not a file {file!r}")
        return cls(kind, file, tuple(flags))


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What a peer must hold: tokens of K/V in all, sequences at once, bytes of K/V."""

    tokens: int
    seqs: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class PeerMethod:
    """How peers are run: threads, the interpreter that has them, and by kind the path of a
    llama-bench (None where programs cannot be peers).
    """

    threads: int = 1
    python: str = ""
    programs: Mapping[str, str] | None = None


class Peer(Protocol):
    """An engine that can run a test."""

    label: str
    version: str

    @property
    def pids(self) -> Sequence[int]: ...
    def measure(self, test: Workload, vocab: int, round: int) -> TimedRun: ...
    def serve(self, prompts: Sequence[Sequence[int]], gen: int) -> float: ...
    def close(self) -> None: ...
