"""A side of a technique in a process of its own, so that its memory is its own and its environment
may differ.

Invariant: the process is gone when the side is closed, however it was used; what it refuses is
raised here as the same error.
"""

import subprocess
import sys
from contextlib import suppress

import msgspec

from flyweight.config import extend_environment
from flyweight.errors import CheckpointError, ConfigError, EngineError, RequestError
from flyweight.prove.child import RunRequest, SideAnswer, SideRequest
from flyweight.prove.technique import Measurement, ProveJob, Technique

REFUSALS = {kind.__name__: kind for kind in (ConfigError, CheckpointError, RequestError)}
PATIENCE = 5  # seconds for a process to end by itself


class ProcessSide:
    """Opened when made; raises what the process refuses."""

    def __init__(self, technique: Technique, job: ProveJob, side: str) -> None:
        self._name = f"{technique.name}, {side}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flyweight.prove.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=extend_environment({}),
        )
        opening = SideRequest(
            technique.name, side, str(job.model), str(job.folder), job.threads
        )  # fmt: skip
        try:
            self.notes = tuple(self._ask(opening).notes)
        except BaseException:
            self.close()
            raise

    def run(self, round: int, share: float) -> Measurement:
        measured = self._ask(RunRequest(round, share)).measured
        assert measured is not None
        return measured

    def close(self) -> None:
        """Lets the process end, or ends it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: SideRequest | RunRequest) -> SideAnswer:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with suppress(BrokenPipeError):
            stdin.write(msgspec.json.encode(request) + b"\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            status = self._process.wait()
            raise EngineError(f"the process of {self._name} ended with status {status}")
        answer = msgspec.json.decode(line, type=SideAnswer)
        if answer.refused is not None:
            data = dict(answer.refused)
            raise REFUSALS.get(str(data.pop("kind")), EngineError)(**data)  # type: ignore[arg-type]
        return answer
