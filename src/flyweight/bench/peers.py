"""Peers: other engines on the same file, each in a process of its own that stands still while it is
not its turn.

Invariant: a peer that is missing, or cannot read the file, is refused or left out by name, never
silently; its processes end with the run.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flyweight.bench.ours import TimedRun
from flyweight.bench.peer import PACKAGES, Peer, PeerArgument, PeerError, PeerMethod, PeerSetup
from flyweight.bench.peer_programs import PROGRAMS
from flyweight.bench.workloads import Workload
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import one_line

CHILD = Path(__file__).with_name("peer_child.py")
PATIENCE = 5  # seconds a peer has to end by itself


def _start_child(python: str, *words: str) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(
            [python, str(CHILD), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError as error:
        raise ConfigError(f"vs_python = {python!r}: {error.strerror}") from None


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
        self.process = _start_child(python, named.kind, named.file or model, json.dumps(options))
        try:
            self.version = self._read_version(python, means)
        except (PeerError, ConfigError):
            self.close()
            raise
        self._stop()

    def _read_version(self, python: str, means: PeerMethod) -> str:
        hello, kind = self._answer(), self.named.kind
        if "missing" not in hello:
            return str(hello["version"])
        package = PACKAGES[kind]
        program = kind == "llama.cpp" and means.programs is not None
        also = ", or give --vs-binary its llama-bench" if program else ""
        raise ConfigError(
            f"vs = {kind!r} needs {package}, which {python} does not have: pip install "
            f"{package}, or give --vs-python an interpreter that has it{also}"
        )

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


def open_peer(named: PeerArgument, model: str, setup: PeerSetup, means: PeerMethod) -> Peer:
    """A peer, ready.  Raises `ConfigError` for one that is not installed, `PeerError` for one that
    cannot read the file, or that has no program to run this.
    """
    path = (means.programs or {}).get(named.kind)
    if path:
        return PROGRAMS[named.kind](named, model, means.threads, path)
    if named.kind in PACKAGES:
        return PeerProcess(named, model, setup, means)
    if means.programs is None:
        raise PeerError(f"{named.kind}: only its llama-bench can run, which does not measure this")
    raise ConfigError(
        f"vs = {named.kind!r} needs --vs-binary {named.kind}=PATH, the path of its llama-bench"
    )
