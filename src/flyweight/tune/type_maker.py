"""A process that makes one quantised file and measures its loss.

    python -m flyweight.tune.type_maker < REQUEST

A process of its own, because what making leaves in memory would count against every candidate that
is loaded later.

Invariant: one JSON object on stdin, JSON lines on stdout: rounds as they begin, then how good the
file is, or why there is none.  The file is under its name when it is whole, with its passport where
its loss could be measured.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flyweight.bench.kernels import RunListener
from flyweight.config import Settings
from flyweight.errors import ConfigError, FlyweightError
from flyweight.quantization import Evaluation, measure_quality, run_prepared, spell_command
from flyweight.quantize.make import PreparedJob, prepare_job
from flyweight.quantize.options import QuantizeOptions
from flyweight.weights.passports import write_passport


@dataclass(frozen=True, slots=True)
class TypeRequest:
    """The `type` of `model` that is to be at `path`."""

    model: str
    type: str
    path: str
    evaluation: Evaluation


class LineReporter(RunListener):
    """Writes rounds as lines of JSON."""

    def __init__(self, send: Any) -> None:
        self.send = send

    def round(self, test: str, done: int, total: int) -> None:
        self.send({"round": [test, done, total]})


def write_type(request: TypeRequest, tell: RunListener) -> str:
    """Makes the file, and returns its loss in words.  Continues where it was stopped.  Raises
    `FlyweightError`.
    """
    path = Path(request.path)
    draft = path.with_name(f"unmeasured-{path.name}")
    options = QuantizeOptions(type=request.type)
    prepared = prepare_job(Settings.of(model=request.model), options, None)
    if not draft.exists():
        run_prepared(prepared, draft, Evaluation(tokens=0), tell.round)
    quality = _measure(request, prepared, draft, tell)
    os.replace(draft, path)
    return quality


def make_apart(request: TypeRequest, tell: RunListener) -> str:
    """The same in a process of its own.  Raises `ConfigError`."""
    words = [sys.executable, "-m", "flyweight.tune.type_maker"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        try:
            with child.stdin:
                json.dump(asdict(request), child.stdin)
            for line in child.stdout:
                said = json.loads(line)
                if "round" in said:
                    tell.round(*said["round"])
                elif "refused" in said:
                    raise ConfigError(f"{request.type} cannot be made: {said['refused']}")
                else:
                    return str(said["quality"])
            last = (child.stderr.read().strip().splitlines() or ["its process ended"])[-1]
            raise ConfigError(f"{request.type} cannot be made: {last}")
        finally:
            child.terminate()


def _measure(request: TypeRequest, prepared: PreparedJob, draft: Path, tell: RunListener) -> str:
    """Writes the passport of a new file; a model that is too large to be measured has none."""
    try:
        passport = measure_quality(prepared, draft, request.evaluation, tell)
        command = spell_command(prepared, Path(request.path), request.evaluation)
        write_passport(draft, replace(passport, command=command))
    except FlyweightError as error:
        return f"not measured: {error}"
    return passport.describe()


def _read_request(found: Mapping[str, Any]) -> TypeRequest:
    return TypeRequest(**{**found, "evaluation": Evaluation(**found["evaluation"])})


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)

        def send(said: Mapping[str, Any]) -> None:
            print(json.dumps(said), file=out)

        try:
            request = _read_request(json.load(sys.stdin))
            send({"quality": write_type(request, LineReporter(send))})
        except FlyweightError as error:
            send({"refused": str(error)})


if __name__ == "__main__":
    main()
