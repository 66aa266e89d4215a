"""Peers: other engines on the same file, each in a process of its own that stands still while it is
not its turn.

Invariant: a peer that is missing, or cannot read the file, is refused or left out by name, never
silently; its processes end with the run.  A peer is its name, `=FILE` where it needs another file
of the same weights, and flags of its own: `llama.cpp -fa off`, `openvino=model-f16.gguf`.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flyweight.bench.ours import TimedRun
from flyweight.bench.workloads import Workload
from flyweight.errors import ConfigError, FlyweightError, nearest
from flyweight.validation.untrusted import one_line

CHILD = Path(__file__).with_name("peer_child.py")
PACKAGES = {
    "llama.cpp": "llama-cpp-python",
    "openvino": "openvino-genai",
    "transformers": "transformers torch",
}
PATIENCE = 5  # seconds a peer has to end by itself


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
        if kind not in PACKAGES:
            raise ConfigError(
                f"vs = {kind!r} is not a known peer; allowed: {', '.join(PACKAGES)}"
                f"{nearest(kind, PACKAGES)}"
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
    """How peers are run: threads, the interpreter that has them, llama.cpp's own binary (None where
    it cannot be the peer).
    """

    threads: int = 1
    python: str = ""
    binary: str | None = None


class Peer(Protocol):
    """An engine that can run a test."""

    label: str
    version: str

    @property
    def pids(self) -> Sequence[int]: ...
    def measure(self, test: Workload, vocab: int, round: int) -> TimedRun: ...
    def serve(self, prompts: Sequence[Sequence[int]], gen: int) -> float: ...
    def close(self) -> None: ...


class PeerProcess:
    """A peer that stays loaded between its turns, stopped by a signal so that it disturbs no
    measurement then.
    """

    def __init__(
        self, named: PeerArgument, model: str, setup: PeerSetup, means: PeerMethod
    ) -> None:
        self.named, self.label = named, named.label
        options = {
            "threads": means.threads,
            "tokens": setup.tokens,
            "seqs": setup.seqs,
            "kv_bytes": setup.kv_bytes,
            "flags": named.flags,
        }
        python = means.python or sys.executable
        command = [python, str(CHILD), named.kind, named.file or model, json.dumps(options)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=None,
            )
        except OSError as error:
            raise ConfigError(f"vs_python = {python!r}: {error.strerror}") from None
        try:
            hello = self._answer()
        except PeerError:
            self.close()
            raise
        if "missing" in hello:
            self.close()
            package = PACKAGES[named.kind]
            program = named.kind == "llama.cpp" and means.binary is not None
            also = ", or give --vs-binary its llama-bench" if program else ""
            raise ConfigError(
                f"vs = {named.kind!r} needs {package}, which {python} does not have: pip install "
                f"{package}, or give --vs-python an interpreter that has it{also}"
            )
        self.version = str(hello["version"])
        self._stop()

    @property
    def pids(self) -> Sequence[int]:
        return (self.process.pid,)

    def measure(self, test: Workload, vocab: int, round: int) -> TimedRun:
        prompts = [p or [1] for p in test.make_prompts(vocab)]
        if test.prompt:
            before = prompts[0] if test.depth else []
            fresh = test.make_fresh_prompt(vocab, round)
            return TimedRun(self.run_command({"do": "prefill", "before": before, "tokens": fresh}))
        command = {"do": "decode", "prompts": prompts, "shared": test.shared, "gen": test.gen}
        return TimedRun(self.run_command(command))

    def serve(self, prompts: Sequence[Sequence[int]], gen: int) -> float:
        """Seconds for all of these, answered with `gen` tokens each."""
        return self.run_command({"do": "generate", "prompts": prompts, "gen": gen})

    def run_command(self, command: dict[str, Any]) -> float:
        """Seconds of a command."""
        self.process.send_signal(signal.SIGCONT)
        try:
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):  # what it says, or does not, is below
                print(json.dumps(command), file=self.process.stdin, flush=True)
            return float(self._answer()["seconds"])
        finally:
            self._stop()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _stop(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise PeerError(f"{self.label} ended without an answer (exit code {code})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.label}: {one_line(answer['error'], 200)}")
        return answer


class PeerBinary:
    """llama-bench and llama-batched-bench, run again for every round."""

    def __init__(self, named: PeerArgument, model: str, means: PeerMethod) -> None:
        self.label, self.flags = named.label, named.flags
        self.model, self.threads = named.file or model, means.threads
        path = Path(means.binary or "").expanduser()
        self.folder = path if path.is_dir() else path.parent
        self.single = path / "llama-bench" if path.is_dir() else path
        self.version = "llama.cpp"
        if not os.access(self.single, os.X_OK) or self.single.is_dir():
            raise ConfigError(
                f"vs_binary = {means.binary!r} is not a program; give the path of llama.cpp's "
                "llama-bench, or of the folder it is in"
            )

    @property
    def pids(self) -> Sequence[int]:
        return ()

    def measure(self, test: Workload, vocab: int, round: int) -> TimedRun:
        """These programs warm themselves up."""
        if round < 0:
            return TimedRun(0.0)
        if test.seqs > 1:
            row = self._run(self._make_batched_command(test))
            return TimedRun(float(row["t_tg"]))
        row = self._run(
            [str(self.single), "-r", "1", "-p", str(test.prompt), "-n", str(test.gen),
             "-d", str(test.depth), "-o", "jsonl"]
        )  # fmt: skip
        self.version = f"llama.cpp {row['build_commit']}"
        return TimedRun(float(row["samples_ns"][0]) / 1e9)

    def serve(self, prompts: Sequence[Sequence[int]], gen: int) -> float:
        raise PeerError(f"{self.label}: its programs serve no requests; llama-cpp-python does")

    def close(self) -> None: ...

    def _make_batched_command(self, test: Workload) -> list[str]:
        program = self.folder / "llama-batched-bench"
        if not os.access(program, os.X_OK):
            raise PeerError(f"{self.label}: no llama-batched-bench next to {self.single}")
        context = test.seqs * (test.before + test.gen) + 64
        shared = ["-pps", "-kvu"] if test.shared else []
        return [
            str(program), "-npp", str(test.before), "-ntg", str(test.gen), "-npl", str(test.seqs),
            "-c", str(context), "-b", "2048", "-ub", "512", "--output-format", "jsonl", *shared,
        ]  # fmt: skip

    def _run(self, command: list[str]) -> dict[str, Any]:
        """The last row a program prints."""
        command = [*command, "-m", self.model, "-t", str(self.threads), *self.flags]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not rows:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise PeerError(f"{self.label}: {Path(command[0]).name} says {one_line(said, 200)}")
        row: dict[str, Any] = json.loads(rows[-1])
        return row


def open_peer(named: PeerArgument, model: str, setup: PeerSetup, means: PeerMethod) -> Peer:
    """A peer, ready.  Raises `ConfigError` for one that is not installed, `PeerError` for one that
    cannot read the file.
    """
    if named.kind == "llama.cpp" and means.binary:
        return PeerBinary(named, model, means)
    return PeerProcess(named, model, setup, means)
