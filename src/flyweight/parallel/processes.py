"""The other ranks of a model, as processes of this machine, and a runner that has all ranks compute
each step.

Invariant: a rank ends when its standard input does, so none outlives the process that started it.
Rank 0 alone schedules and samples; the others get a step's arrays and compute it up to its logits.
Knows no requests.
"""

import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from flyweight.config import Limits, Settings
from flyweight.engine.hook import LogitsEdit, LogitsRead
from flyweight.engine.runner import Runner, Ticket
from flyweight.errors import ConfigError
from flyweight.parallel.messages import Moves, write_step
from flyweight.parallel.numa import Cores, stay_on
from flyweight.parallel.sharding import RankPlace
from flyweight.wire import Batch, Sampled

if TYPE_CHECKING:
    from flyweight.parallel.comm import RankGroup

# Of `Settings`: what a rank must know to load its part as rank 0 loads its own.
SHARED = (
    "model", "load_format", "quantization", "packed_cache", "threads", "activations", "isa",
    "block_size", "tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel",
)  # fmt: skip
LOADED, FAILED = "loaded", "failed"
LEAVING = 5.0  # seconds a rank has to end by itself


class RankSetup(msgspec.Struct):
    """What a rank is started with: its place, the first and the number of each stage's layers, and
    the `folder` where ranks find each other.  It stays on these `cores`, if there are any.
    """

    settings: dict[str, Any]
    rank: int
    stages: list[tuple[int, int]]
    folder: str
    limits: dict[str, Any]
    kv_dtype: str
    cores: list[int]

    @property
    def place(self) -> RankPlace:
        stages = tuple(range(first, first + count) for first, count in self.stages)
        tensor = self.settings["tensor_parallel_size"]
        return RankPlace(self.rank, tensor, stages, self.settings["enable_expert_parallel"])


class RankReport(msgspec.Struct):
    """One line of a rank: it has loaded its part, or what is wrong."""

    state: str
    problem: str = ""


class RankProcesses:
    """All ranks but rank 0, whose place is `place`; none where a model is not divided.  They load
    while this process does.
    """

    def __init__(
        self, settings: Settings, path: Path, places: Sequence[RankPlace],
        shape: tuple[Limits, str], cores: Sequence[Cores],
    ) -> None:  # fmt: skip
        """`shape` are the limits and the type of the K/V memory, `cores` those of each rank."""
        self.place, (limits, kv_dtype), self.cores = places[0], shape, cores[0]
        self.children: list[subprocess.Popen[bytes]] = []
        self._finalize: Callable[[], object] = lambda: None
        if len(places) == 1:
            return
        self.folder = Path(tempfile.mkdtemp(prefix="flyweight-ranks-"))  # the user's alone
        self._finalize = weakref.finalize(self, end_ranks, self.children, self.folder)
        shared = {name: getattr(settings, name) for name in SHARED} | {"model": str(path)}
        limit = asdict(limits)
        stages = [(layers.start, len(layers)) for layers in self.place.stages]
        for other in places[1:]:
            own = sorted(cores[other.rank])
            setup = RankSetup(shared, other.rank, stages, str(self.folder), limit, kv_dtype, own)
            self.children.append(start_rank(setup))

    def wait(self) -> None:
        """Waits until all have loaded their parts.  Raises `ConfigError` where one cannot."""
        for rank, child in enumerate(self.children, 1):
            assert child.stdout is not None
            problem = _read_problem(rank, child.stdout)
            if problem:
                self.close()
                raise ConfigError(problem)

    @contextmanager
    def close_on_error(self) -> Iterator[None]:
        """Ends them where the block raises: nothing would use them any more."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends them."""
        self._finalize()


def start_rank(setup: RankSetup) -> "subprocess.Popen[bytes]":
    """A process that loads its part of a model, and then computes steps."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "flyweight.rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is for rank 0, which decides
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # `wait` says what became of it
        child.stdin.write(msgspec.json.encode(setup) + b"\n")
        child.stdin.flush()
    return child


def _read_problem(rank: int, output: IO[bytes]) -> str:
    """Why a rank has not loaded; empty where it has."""
    line = output.readline()
    if not line:
        return f"rank {rank} ended before it had loaded its part of the model"
    try:
        report = msgspec.json.decode(line, type=RankReport)
    except msgspec.DecodeError:
        return f"rank {rank} wrote {line[:80]!r}, which is no report"
    return "" if report.state == LOADED else f"rank {rank}: {report.problem}"


def end_ranks(children: "list[subprocess.Popen[bytes]]", folder: Path) -> None:
    """Ends processes, by their standard input, then by force; and removes the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    end_processes(children)


def end_processes(children: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Ends processes: by their standard input, then by force."""
    for child in children:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
    for child in children:
        try:
            child.wait(LEAVING)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class LeadingRunner:
    """Rank 0's runner: sends each step to the other ranks, and computes its own part on its
    `cores`.
    """

    def __init__(self, runner: Runner, group: "RankGroup", cores: Cores) -> None:
        self.runner, self.group, self.cores = runner, group, cores
        self._within = False  # a step was begun and not ended

    def submit(
        self,
        batch: Batch,
        moves: Moves = None,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket:
        """See `Runner.submit`.  A step that was interrupted leaves the ranks in different places:
        `RankLost` is raised from then on.
        """
        if self._within:
            self.group.lose("a step was interrupted while its ranks computed it")
        self._within = True
        with stay_on(self.cores):
            self.group.broadcast(write_step(batch, moves))
            found = self.runner.compute(batch, moves)
            self._within = False
            return self.runner.sample(found, batch, edits, reads)

    def wait(self, ticket: Ticket) -> Sampled:
        return self.runner.wait(ticket)
