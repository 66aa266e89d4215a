"""Peers that are programs: llama-bench and llama-batched-bench of llama.cpp, and llama-bench of
ik_llama.cpp, its fork for CPUs, which has options and an output of its own.

Invariant: a program is run again for every round and warms itself up; what it cannot measure is a
`PeerError`. A further program is one class and one row of `PROGRAMS`.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyweight.bench.ours import TimedRun
from flyweight.bench.peer import PeerArgument, PeerError
from flyweight.bench.workloads import Workload
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import one_line


class LlamaBench:
    """llama.cpp's llama-bench and llama-batched-bench."""

    served_by = "; llama-cpp-python does"  # for refusals

    def __init__(self, named: PeerArgument, model: str, threads: int, given: str) -> None:
        self.label, self.flags, self.kind = named.label, named.flags, named.kind
        self.model, self.threads = named.file or model, threads
        path = Path(given).expanduser()
        self.folder = path if path.is_dir() else path.parent
        self.single = path / "llama-bench" if path.is_dir() else path
        self.version = self.kind
        if not os.access(self.single, os.X_OK) or self.single.is_dir():
            raise ConfigError(
                f"vs_binary = {given!r} is not a program; give the path of {self.kind}'s "
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
            return TimedRun(float(self._run(self._make_batched_command(test))["t_tg"]))
        row = self._run([str(self.single), "-r", "1", *self._list_options(test)])
        self.version = f"{self.kind} {row['build_commit']}"
        return TimedRun(float(row["samples_ns"][0]) / 1e9)

    def serve(self, prompts: Sequence[Sequence[int]], gen: int) -> float:
        raise PeerError(f"{self.label}: its programs serve no requests{self.served_by}")

    def close(self) -> None: ...

    def _list_options(self, test: Workload) -> list[str]:
        """llama-bench's options for a test of one sequence."""
        return ["-p", str(test.prompt), "-n", str(test.gen), "-d", str(test.depth), "-o", "jsonl"]

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

    def _read_row(self, said: str) -> dict[str, Any] | None:
        """The last row a program printed; None where there is none."""
        rows = [line for line in said.splitlines() if line.startswith("{")]
        row: dict[str, Any] | None = json.loads(rows[-1]) if rows else None
        return row

    def _run(self, command: list[str]) -> dict[str, Any]:
        command = [*command, "-m", self.model, "-t", str(self.threads), *self.flags]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        row = None if done.returncode else self._read_row(done.stdout)
        if row is None:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise PeerError(f"{self.label}: {Path(command[0]).name} says {one_line(said, 200)}")
        return row


class IkLlamaBench(LlamaBench):
    """ik_llama.cpp's llama-bench: a context before decoding by `-gp`, rows as one JSON array."""

    served_by = ""

    def _list_options(self, test: Workload) -> list[str]:
        if not test.depth:
            return ["-p", str(test.prompt), "-n", str(test.gen), "-o", "json"]
        if test.prompt:
            raise PeerError(f"{self.label}: its llama-bench times no prompt after a context")
        return ["-p", "0", "-n", "0", "-gp", f"{test.depth},{test.gen}", "-o", "json"]

    def _make_batched_command(self, test: Workload) -> list[str]:
        raise PeerError(f"{self.label}: its llama-bench decodes one sequence")

    def _read_row(self, said: str) -> dict[str, Any] | None:
        """What precedes the array are remarks, about repacking for example."""
        _, begin, array = f"\n{said}".partition("\n[\n")
        try:
            rows: list[dict[str, Any]] = json.loads(f"[{array}") if begin else []
        except ValueError:  # remarks within it
            return None
        return rows[-1] if rows else None


PROGRAMS: dict[str, type[LlamaBench]] = {"llama.cpp": LlamaBench, "ik_llama.cpp": IkLlamaBench}


def name_programs(given: Sequence[str]) -> dict[str, str]:
    """Paths by the peer that they belong to: `PEER=PATH`, or llama.cpp's."""
    programs = {}
    for text in given:
        kind, separator, path = text.partition("=")
        if separator and kind in PROGRAMS:
            programs[kind] = path
        else:
            programs["llama.cpp"] = text
    return programs
