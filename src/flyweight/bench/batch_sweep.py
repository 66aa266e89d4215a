"""Batches of growing size: what memory each needs, and how long its requests take together.

Invariant: sizes take turns in every round, so a busy machine slows all of them; every request has
the same number of tokens, and nothing is found in the prefix cache.  A size that does not fit the
memory limit is not run.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from flyweight.backends import choose_backend
from flyweight.bench.kernels import RunListener
from flyweight.bench.workloads import make_ids
from flyweight.config import Settings, whole
from flyweight.describe import describe, find
from flyweight.errors import ConfigError
from flyweight.llm import LLM
from flyweight.model_memory import make_memory_plan, measure_needs
from flyweight.plan.machine import read_machine
from flyweight.types import SamplingParams

MOST_LENGTH, MOST_BATCH, MOST_ROUNDS = 1 << 20, 4096, 1000
BLOCK = 32  # tokens of K/V


@dataclass(frozen=True, slots=True)
class BatchSweep:
    """Requests of `input_len` tokens in and `output_len` out, in batches of `sizes`; `engine` are
    settings of all of them.  Raises `ConfigError`.
    """

    model: str
    sizes: Sequence[int]
    input_len: int = 32
    output_len: int = 64
    rounds: int = 3
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("input_len", self.input_len, 1, MOST_LENGTH)
        whole("output_len", self.output_len, 1, MOST_LENGTH)
        whole("repetitions", self.rounds, 1, MOST_ROUNDS)
        for size in self.sizes:
            whole("batch", size, 1, MOST_BATCH)

    def make_options(self, size: int) -> dict[str, Any]:
        """An engine for batches of up to `size`, with room for all their tokens."""
        length = self.input_len + self.output_len
        return {
            **self.engine,
            "max_num_seqs": size,
            "max_model_len": length,
            "max_num_batched_tokens": max(512, size),
            "block_size": BLOCK,
            "blocks": size * (-(-length // BLOCK) + 1),
            "enable_prefix_caching": False,
        }


@dataclass(frozen=True, slots=True)
class BatchResult:
    """`memory` bytes are planned; `seconds` is the median of the rounds, None where the size does
    not fit.
    """

    size: int
    memory: int | None = None
    seconds: float | None = None

    @property
    def rate(self) -> float | None:
        """Requests a second."""
        return self.size / self.seconds if self.seconds else None


def measure_batches(sweep: BatchSweep, listener: RunListener) -> list[BatchResult]:
    """One result a size.  Raises `ConfigError` where none fits."""
    memory = plan_sizes(sweep)
    fitting = [size for size, need in memory.items() if need is not None]
    times: dict[int, list[float]] = {size: [] for size in memory}
    options = sweep.make_options(max(fitting))
    with LLM(sweep.model, notify=listener, **options) as llm:
        llm.loaded.moving.settle()
        total = sweep.rounds + 1
        for turn in range(total):
            listener.round(f"round {turn}" if turn else "warm-up", turn, total)
            for size in fitting:
                seconds = time_batch(llm, sweep, size, turn)
                times[size] += [seconds] if turn else []
    return [
        BatchResult(size, need, median(times[size]) if times[size] else None)
        for size, need in memory.items()
    ]


def plan_sizes(sweep: BatchSweep) -> dict[int, int | None]:
    """Bytes that each size needs at most; None where they are above the memory limit.  Raises
    `ConfigError` where that is so for all.
    """
    here = read_machine()
    found = describe(find(Settings.of(model=sweep.model)))
    refusal: ConfigError | None = None
    memory: dict[int, int | None] = {}
    for size in dict.fromkeys(sweep.sizes):
        settings = Settings.of(model=sweep.model, **sweep.make_options(size))
        needs = measure_needs(
            found.checkpoint, found.spec, found.plan, choose_backend(settings, here.cores)
        )
        try:
            memory[size] = make_memory_plan(settings, needs, here).need
        except ConfigError as error:
            memory[size], refusal = None, refusal or error
    found.checkpoint.close()
    if refusal is not None and not any(memory.values()):
        raise refusal
    return memory


def time_batch(llm: LLM, sweep: BatchSweep, size: int, turn: int) -> float:
    """Seconds from the first request to the last token of all."""
    params = SamplingParams(temperature=0, max_tokens=sweep.output_len, ignore_eos=True)
    vocab, first = llm.loaded.spec.vocab, (turn + 1) * (1 << 20) + size * MOST_BATCH
    prompts = [make_ids(vocab, sweep.input_len, first + i) for i in range(size)]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


def choose_best(results: Sequence[BatchResult]) -> BatchResult:
    """The most requests a second, among the sizes that fit."""
    return max(results, key=lambda one: one.rate or 0.0)
