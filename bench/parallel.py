"""Models over several processes beside one process: decoding and prompts in turn, the share of
collectives in tensor-parallel steps, and the bubble of pipeline stages beside its formula.

    python bench/parallel.py MODEL ... [--ways 2x1,1x2] [--rounds 5] [--prompt 512] [--tokens 32]
                             [--gloo]

All have the same threads in all.  Ratios are medians of the rounds' own ratios to one process.
Rank 0 times its collectives; those of decoding are of the decode steps alone.  A collective lasts
from when the last rank comes until rank 0 has the result; before, rank 0 waits for a rank that has
computed longer, or was woken later.  What stages receive is all in `collectives`, with the wait.
With `--gloo`, ranks use gloo over loopback in place of shared memory, as between hosts, and all
waits are in `collectives`.
The overhead on the 1B shape, in memory for two models at a time:

    python bench/make_shapes.py OUT --shapes llama-3.2-1b --types bf16,q4_0
    python bench/parallel.py OUT/llama-3.2-1b/{bf16,q4_0}.gguf --ways 2x1
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from flyweight import LLM, SamplingParams
from flyweight.parallel import host_exchange
from flyweight.parallel.pipeline import PipelineStage
from flyweight.parallel.processes import LeadingRunner

ALONE = (1, 1)  # tensor, pipeline
WITHOUT_SHARED_MEMORY = """
from flyweight.parallel import host_exchange

host_exchange._make_folder = lambda size: None
"""


class TimedCall(NamedTuple):
    """Seconds of a call: all, those in collectives, and those of waiting for other ranks."""

    whole: float
    exchange: float
    waiting: float

    def subtract(self, other: "TimedCall") -> "TimedCall":
        return TimedCall(*(a - b for a, b in zip(self, other, strict=True)))

    @property
    def shares(self) -> tuple[float, float]:
        """Of the seconds, in percent: those in collectives, and those of waiting."""
        return 100 * self.exchange / self.whole, 100 * self.waiting / self.whole


@dataclass
class Variant:
    """A model over `tensor` x `pipeline` processes, and what was measured."""

    tensor: int
    pipeline: int
    llm: LLM
    prompt: list[float] = field(default_factory=list)  # tokens a second
    decode: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # seconds of a decode step
    shares: list[tuple[float, ...]] = field(default_factory=list)  # of prompts, then of decoding
    bubbles: list[tuple[float, float]] = field(default_factory=list)  # measured, by the formula

    @property
    def name(self) -> str:
        runner: Any = self.llm.loaded.engine.runner
        over_gloo = isinstance(runner, LeadingRunner) and runner.group.waited is None
        return f"tp {self.tensor} pp {self.pipeline}{', gloo' if over_gloo else ''}"

    def run(self, ids: list[int], tokens: int) -> None:
        """One round: a prompt, then decoding."""
        first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        more = SamplingParams(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
        prompt = self._time(ids, first)
        self.prompt.append(len(ids) / prompt.whole)
        self._note_bubble()
        before, after = self._time(ids[:8], first), self._time(ids[:8], more)
        decode = after.subtract(before)
        self.decode.append(tokens / decode.whole)
        self.steps.append(decode.whole / tokens)
        self.shares.append((*prompt.shares, *decode.shares))

    def _time(self, ids: list[int], params: SamplingParams) -> TimedCall:
        """A call, and what rank 0 spends in collectives."""
        self.llm.reset_prefix_cache()
        before = self._read_clocks()
        self.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        return self._read_clocks().subtract(before)

    def _read_clocks(self) -> TimedCall:
        """The time, and what rank 0 has spent so far in all groups that it is in."""
        runner: Any = self.llm.loaded.engine.runner
        if not isinstance(runner, LeadingRunner):
            return TimedCall(time.perf_counter(), 0.0, 0.0)
        model: Any = runner.runner.model
        groups = [runner.group]
        if isinstance(model, PipelineStage) and self.tensor > 1:
            groups.append(model.stage.parts.comm)
        seconds = sum(group.seconds for group in groups)
        waited = sum(group.waited or 0.0 for group in groups)
        return TimedCall(time.perf_counter(), seconds - waited, waited)

    def clear(self) -> None:
        """Forgets the rounds so far."""
        for found in (self.prompt, self.decode, self.steps, self.shares, self.bubbles):
            found.clear()

    def _note_bubble(self) -> None:
        runner: Any = self.llm.loaded.engine.runner
        model = runner.runner.model if isinstance(runner, LeadingRunner) else None
        if isinstance(model, PipelineStage):
            self.bubbles.append((model.times.measured, model.times.expected))
            model.times.clear()


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("models", nargs="+", metavar="MODEL")
    given.add_argument("--ways", type=read_ways, default="2x1,1x2", help="tensor x pipeline ranks")
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--prompt", type=int, default=512)
    given.add_argument("--tokens", type=int, default=32)
    given.add_argument("--gloo", action="store_true", help="in place of shared memory")
    options = given.parse_args()
    with only_gloo() if options.gloo else nullcontext():
        for model in options.models:
            measure(model, options)


@contextmanager
def only_gloo() -> Iterator[None]:
    """Ranks share no memory, in this process and in those of other ranks: Python imports
    `sitecustomize` when it starts.  No setting does this, as it is of no use but to measure.
    """
    made, path = host_exchange._make_folder, os.environ.get("PYTHONPATH")
    with TemporaryDirectory(prefix="flyweight-gloo-") as folder:
        Path(folder, "sitecustomize.py").write_text(WITHOUT_SHARED_MEMORY)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, path)))
        host_exchange._make_folder = lambda size: None
        try:
            yield
        finally:
            host_exchange._make_folder = made
            if path is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = path


def read_ways(text: str) -> list[tuple[int, int]]:
    """ "2x1,1x2" as pairs of tensor and pipeline ranks."""
    return [(int(t), int(p)) for t, _, p in (way.partition("x") for way in text.split(","))]


def measure(model: str, options: argparse.Namespace) -> None:
    """Prints the table of one model."""
    # Nothing is written to disk while steps are timed.
    size: dict[str, Any] = {"packed_cache": False, "max_num_seqs": 1}
    size["max_model_len"] = options.prompt + options.tokens + 16
    variants = [
        Variant(tensor, pipeline, LLM(
            model, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **size
        ))
        for tensor, pipeline in (ALONE, *options.ways)
    ]  # fmt: skip
    print(f"{model}: loaded", file=sys.stderr, flush=True)
    vocab = variants[0].llm.loaded.spec.vocab
    rng = np.random.default_rng(0)
    for i in range(options.rounds + 1):
        ids = rng.integers(0, vocab, options.prompt).tolist()
        for one in variants:
            one.run(ids, options.tokens)
        if i == 0:  # a round to warm up
            for one in variants:
                one.clear()
        else:
            print(f"round {i} of {options.rounds}", file=sys.stderr, flush=True)
    print(f"\n{model}\n")
    show(variants)
    for one in variants:
        one.llm.close()


def show(variants: list[Variant]) -> None:
    alone = variants[0]
    print("| ranks | prompt t/s | ÷ one | decode t/s | ÷ one | ms a step "
          "| prompt: collectives | waiting | decode: collectives | waiting |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for one in variants:
        ratios = [
            median(a / b for a, b in zip(own, base, strict=True))
            for own, base in ((one.prompt, alone.prompt), (one.decode, alone.decode))
        ]
        shares = [f"{median(found):.1f} %" for found in zip(*one.shares, strict=True)]
        print(f"| {one.name} | {median(one.prompt):.1f} | {ratios[0]:.2f} "
              f"| {median(one.decode):.2f} | {ratios[1]:.2f} "
              f"| {1000 * median(one.steps):.2f} | {' | '.join(shares)} |")  # fmt: skip
    for one in variants:
        if one.bubbles:
            measured, expected = (100 * median(pair[i] for pair in one.bubbles) for i in (0, 1))
            print(f"{one.name}: a prompt's stages waited {measured:.1f} % of the time; "
                  f"(p - 1) / (m + p - 1) is {expected:.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
