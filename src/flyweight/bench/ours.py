"""The engine's own time for a test: whole steps (schedule, compute, sample, commit) on token ids,
and what each step computed, recorded for the roofline.

Invariant: what comes before a test is not timed, and nothing is found in the prefix cache but that;
the engine raises where it is otherwise. A `Recorder` passes every call on unchanged, and copies a
few small arrays a step, some microseconds. No text, no stop strings.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from flyweight import _native
from flyweight.backends import choose_backend
from flyweight.bench.facts import ModelFacts
from flyweight.bench.workloads import Workload, count_needs
from flyweight.build import build
from flyweight.config import Settings
from flyweight.describe import ModelDescription, SilentListener
from flyweight.engine.engine import Engine
from flyweight.engine.hook import LogitsEdit, LogitsRead
from flyweight.engine.runner import ModelRunner, Ticket
from flyweight.errors import ConfigError
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import MemoryPlan
from flyweight.plan.roofline import StepShape, make_shape
from flyweight.types import Request, SamplingParams
from flyweight.wire import I32, Batch, Sampled


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What is kept of a batch; `tables` only where sequences may share blocks."""

    starts: I32
    contexts: I32
    tables: I32 | None
    rows: int

    def make_shape(self, block_size: int) -> StepShape:
        """The step as the roofline counts it."""
        counts, contexts = np.diff(self.starts).tolist(), self.contexts.tolist()
        chunks = tuple(zip(counts, contexts, strict=True))
        return StepShape(chunks, self.rows, self._count_distinct(block_size))

    def _count_distinct(self, block_size: int) -> int:
        """Positions of K/V that are not another sequence's too."""
        if self.tables is None:
            return int(self.contexts.sum())
        first = np.arange(self.tables.shape[1], dtype=np.int64) * block_size  # [M]
        filled = np.clip(self.contexts[:, None] - first, 0, block_size)  # [S, M]
        used = filled > 0
        blocks, fill = self.tables[used], filled[used]
        most = np.zeros(int(blocks.max()) + 1, np.int64)
        np.maximum.at(most, blocks, fill)
        return int(most.sum())


class Recorder:
    """A runner around another."""

    def __init__(self, inner: ModelRunner) -> None:
        self.inner = inner
        self.steps: list[RecordedStep] = []
        self.inside = 0.0  # seconds within the runner: copies, model, sampling

    def submit(
        self,
        batch: Batch,
        moves: tuple[I32, I32] | None = None,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket:
        tables = batch.tables.copy() if len(batch.contexts) > 1 else None
        self.steps.append(
            RecordedStep(batch.starts.copy(), batch.contexts.copy(), tables, len(batch.rows))
        )
        start = time.perf_counter()
        ticket = self.inner.submit(batch, moves, edits, reads)
        self.inside += time.perf_counter() - start
        return ticket

    def wait(self, ticket: Ticket) -> Sampled:
        return self.inner.wait(ticket)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def make_shapes(self, block_size: int) -> list[StepShape]:
        """The steps so far, for the roofline."""
        return [step.make_shape(block_size) for step in self.steps]


@contextmanager
def record_steps(engine: Engine) -> Iterator[Recorder]:
    """Steps of the engine are recorded until the block ends."""
    inner = engine.runner
    recorder = Recorder(inner)
    engine.runner = recorder
    try:
        yield recorder
    finally:
        engine.runner = inner


GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Seconds of one run of a test, and the steps in it (none where they are not known), which
    took `outside` seconds outside the runner: scheduling, batches, commits.
    """

    seconds: float
    steps: tuple[StepShape, ...] = ()
    outside: float = 0.0

    @property
    def outside_us(self) -> float:
        """Microseconds a step."""
        return 1e6 * self.outside / len(self.steps) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class BenchEngineOptions:
    """How the engine is set up for measuring."""

    threads: int | None = None
    activations: str = "int8"
    kv_cache_dtype: str = "auto"
    block_size: int = 32
    max_num_batched_tokens: int = 512
    memory_limit: str = "80%"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_expert_parallel: bool = False


class RunNotes(SilentListener):
    """Keeps what a load finds out about the model, and passes the rest on."""

    def __init__(self, listener: SilentListener) -> None:
        self.listener = listener
        self.found: ModelDescription | None = None

    def show_plan(self, plan: MemoryPlan, found: ModelDescription) -> None:
        self.found = found

    def report_progress(self, done: int, total: int) -> None:
        self.listener.report_progress(done, total)

    def warn(self, message: str) -> None:
        self.listener.warn(message)

    def note(self, message: str) -> None:
        self.listener.note(message)

    def show_download(self, file: str, done: int, total: int) -> None:
        self.listener.show_download(file, done, total)


def make_settings(model: str, tests: Sequence[Workload], options: BenchEngineOptions) -> Settings:
    """The engine's settings for these tests: no more K/V than they need."""
    step = max(options.max_num_batched_tokens, 1)
    length, seqs, blocks = count_needs(tests, options.block_size, step)
    return Settings.of(
        model=model,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(step, seqs),
        blocks=blocks,
        block_size=options.block_size,
        threads=options.threads,
        activations=options.activations,
        kv_cache_dtype=options.kv_cache_dtype,
        memory_limit=options.memory_limit,
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        enable_expert_parallel=options.enable_expert_parallel,
    )


def find_isa(given: Settings) -> str:
    """The instruction set that will be used."""
    return str(_native.Pool(1, given.isa or "").isa)


def find_kv_dtype(given: Settings) -> str:
    """What K and V will be stored in."""
    requested = given.kv_cache_dtype
    return (
        choose_backend(replace(given, threads=1), 1).kv_dtype if requested == "auto" else requested
    )


class OwnEngine:
    """An engine made to run some tests."""

    def __init__(
        self,
        model: str,
        tests: Sequence[Workload],
        options: BenchEngineOptions,
        listener: SilentListener | None = None,
    ) -> None:
        for test in tests:
            check_depth(test, options.block_size)
        notes = RunNotes(listener or SilentListener())
        given = make_settings(model, tests, options)
        self.options, self.loaded = options, build(given, notes)
        self.loaded.moving.settle()
        self.threads, self.isa = given.threads or read_machine().cores, find_isa(given)
        found = notes.found
        assert found is not None, "loading reports the model that it found"
        self.facts, self.path = ModelFacts.of(found), found.checkpoint.path
        self.kv_dtype = self.loaded.memory.sizing.kv_dtype
        self.shape = make_shape(
            found.checkpoint, found.plan, found.spec, options.activations, self.kv_dtype
        )
        self.token_bytes = sum(self.shape.kv_type.count_bytes(x.kv) for x in found.spec.layers)
        self._ids = count()

    def measure(self, test: Workload, round: int) -> TimedRun:
        """One run."""
        if test.depth or test.shared:
            self._fill(test)
        if test.prompt:
            return self._prefill(test, round)
        return self._decode(test, round)

    def _fill(self, test: Workload) -> None:
        """Computes what comes before, where it is not in the prefix cache already."""
        prompts = test.make_prompts(self._vocab)
        for prompt in prompts[:1] if test.shared else prompts:
            self._add(test, prompt[: test.before], 1)
        while self.loaded.engine.busy:
            self.loaded.engine.step()

    def _prefill(self, test: Workload, round: int) -> TimedRun:
        engine = self.loaded.engine
        fresh = test.make_fresh_prompt(self._vocab, round)
        before = engine.metrics.cached
        self._add(test, test.make_prompts(self._vocab)[0] + fresh, 1, round)
        with record_steps(engine) as recorder:
            start = time.perf_counter()
            while engine.busy:
                engine.step()
            seconds = time.perf_counter() - start
        self._check_found(test, engine.metrics.cached - before, test.depth)
        steps = tuple(recorder.make_shapes(self.options.block_size))
        return TimedRun(seconds, steps, seconds - recorder.inside)

    def _decode(self, test: Workload, round: int) -> TimedRun:
        engine, size = self.loaded.engine, self.options.block_size
        before = engine.metrics.cached
        prompts = [p or [1] for p in test.make_prompts(self._vocab)]
        longest = self.loaded.limits.max_model_len - max(map(len, prompts))
        mine = [self._add(test, prompt, longest, round) for prompt in prompts]
        waiting = set(mine)
        while waiting:  # until every sequence has its first token
            waiting -= {event.id for event in engine.step() if event.tokens}
        reach = test.shared or test.depth - 1
        self._check_found(
            test, engine.metrics.cached - before, test.seqs * (max(0, reach) // size * size)
        )
        with record_steps(engine) as recorder:
            start = time.perf_counter()
            for _ in range(test.gen):
                engine.step()
            seconds = time.perf_counter() - start
        steps = tuple(recorder.make_shapes(size))
        for id in mine:
            engine.abort(id)
        assert all(step.tokens == test.seqs for step in steps), "a sequence ended too early"
        return TimedRun(seconds, steps, seconds - recorder.inside)

    def _add(self, test: Workload, tokens: Sequence[int], answer: int, round: int = 0) -> str:
        """Queues a request.  Only tests that want it find what others computed."""
        id = f"bench-{next(self._ids)}"
        salt = "depth" if test.depth or test.shared else id
        self.loaded.engine.add(Request(id, tuple(tokens), GREEDY, max_tokens=answer, salt=salt))
        return id

    def _check_found(self, test: Workload, found: int, wanted: int) -> None:
        assert found == wanted, f"{test.name}: {found} tokens found in the cache, not {wanted}"

    @property
    def _vocab(self) -> int:
        return self.loaded.spec.vocab


def check_depth(test: Workload, block_size: int) -> None:
    """What comes before a prompt is kept in whole blocks."""
    if test.prompt and test.depth % block_size:
        near = max(1, round(test.depth / block_size)) * block_size
        raise ConfigError(
            f"depth = {test.depth} before a prompt; allowed: multiples of {block_size}, the tokens "
            f"of a block of K/V; nearest valid: {near}"
        )
