"""The packed weight cache: a later start maps the file that an earlier one left."""

from pathlib import Path
from tempfile import TemporaryDirectory

from flyweight.bench.startup import time_start
from flyweight.prove.technique import Measurement, ProveJob, Technique


class StartSide:
    """Starts a process that answers one prompt: with an empty cache, or with a filled one."""

    notes = ()

    def __init__(self, job: ProveJob, side: str) -> None:
        self._model = str(job.model)
        self._options = ("--threads", str(job.threads)) if job.threads else ()
        self._folder, self._kept = job.folder, job.folder / "kept"
        self._filled = side == "on"
        if self._filled:
            self._kept.mkdir(exist_ok=True)
            self._start(self._kept)

    def run(self, round: int, share: float) -> Measurement:
        if self._filled:
            return self._start(self._kept)
        with TemporaryDirectory(dir=self._folder) as empty:
            return self._start(Path(empty))

    def close(self) -> None:
        """Nothing is held between runs."""

    def _start(self, cache: Path) -> Measurement:
        done = time_start(self._model, self._options, cache)
        return Measurement(done.whole, 1, 1, 1, ttfts=(done.first,), peak=done.peak)


TECHNIQUE = Technique(
    name="packed",
    what="packed weights: kept in a file that the next start maps into memory",
    workload="a process from its start to the first token of one prompt",
    off="FLYWEIGHT_CACHE is an empty folder in every run: weights are packed again",
    on="FLYWEIGHT_CACHE is a folder that one start has filled",
    metric="ttft",
    open=StartSide,
    stand_in="wide",
    least_share=1.0,
)
