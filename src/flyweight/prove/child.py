"""One side of a technique as a process: reads runs as lines of JSON on stdin, answers with what was
measured.

    python -m flyweight.prove.child

Invariant: nothing but answers goes to stdout; a refusal is an answer as well.  The process ends
when its stdin does.  Its peak memory is that of this side alone.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

import msgspec

from flyweight.bench.facts import OtherProcesses
from flyweight.errors import FlyweightError
from flyweight.plan.energy import EnergyMeter
from flyweight.prove.peak import measure_peak
from flyweight.prove.registry import find_technique
from flyweight.prove.technique import Measurement, ProveJob


class SideRequest(msgspec.Struct):
    """The first line: which side of what to open."""

    technique: str
    side: str
    model: str
    folder: str
    threads: int | None = None


class RunRequest(msgspec.Struct):
    """A line for each run."""

    round: int
    share: float


class SideAnswer(msgspec.Struct):
    """What a line is answered with; `refused` is the data of an error."""

    notes: list[str] = []
    measured: Measurement | None = None
    refused: dict[str, object] | None = None


def serve(lines: IO[bytes], out: IO[bytes]) -> None:
    """Opens a side, then runs it once for each line."""

    def answer(given: SideAnswer) -> None:
        out.write(msgspec.json.encode(given) + b"\n")
        out.flush()

    try:
        opening = msgspec.json.decode(lines.readline(), type=SideRequest)
        job = ProveJob(Path(opening.model), Path(opening.folder), opening.threads)
        side = find_technique(opening.technique).open(job, opening.side)
        answer(SideAnswer(list(side.notes)))
        meter = EnergyMeter()
        for line in lines:
            given = msgspec.json.decode(line, type=RunRequest)
            with meter:
                others = OtherProcesses()
                measured = side.run(given.round, given.share)
                cores = others.measure_cores()
            if measured.others is not None:  # the side knows which processes are its own
                cores = measured.others
            peak = measured.peak or measure_peak()
            found = replace(measured, peak=peak, joules=meter.joules, others=cores)
            answer(SideAnswer(measured=found))
    except FlyweightError as error:
        answer(SideAnswer(refused={**error.data, "kind": type(error).__name__}))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this ends it
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what else is printed goes to stderr
        serve(sys.stdin.buffer, out)


if __name__ == "__main__":
    main()
