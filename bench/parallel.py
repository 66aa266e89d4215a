"""Models over several processes beside one process: decoding and prompts in turn, the share of
collectives in tensor-parallel steps, and the bubble of pipeline stages beside its formula.

    python bench/parallel.py MODEL ... [--ways 2x1,1x2] [--rounds 5] [--prompt 512] [--tokens 32]

All have the same threads in all.  Ratios are medians of the rounds' own ratios to one process.
Collectives are timed by rank 0, waits for the other ranks included; of decoding they are those of
the decode steps alone.  The overhead on the 1B shape, in memory for two models at a time:

    python bench/make_shapes.py OUT --shapes llama-3.2-1b --types bf16,q4_0
    python bench/parallel.py OUT/llama-3.2-1b/{bf16,q4_0}.gguf --ways 2x1
"""

import argparse
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from flyweight import LLM, SamplingParams
from flyweight.parallel.pipeline import PipelineStage
from flyweight.parallel.processes import LeadingRunner

ALONE = (1, 1)  # tensor, pipeline


@dataclass
class Variant:
    """A model over `tensor` x `pipeline` processes, and what was measured."""

    tensor: int
    pipeline: int
    llm: LLM
    prompt: list[float] = field(default_factory=list)  # tokens a second
    decode: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)  # seconds of a decode step
    waits: list[tuple[float, float]] = field(default_factory=list)  # shares of prompts and decoding
    bubbles: list[tuple[float, float]] = field(default_factory=list)  # measured, by the formula

    @property
    def name(self) -> str:
        return f"tp {self.tensor} pp {self.pipeline}"

    def run(self, ids: list[int], tokens: int) -> None:
        """One round: a prompt, then decoding."""
        first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        more = SamplingParams(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
        seconds, waited = self._time(ids, first)
        self.prompt.append(len(ids) / seconds)
        share = waited / seconds
        self._note_bubble()
        before, after = self._time(ids[:8], first), self._time(ids[:8], more)
        seconds, waited = (b - a for a, b in zip(before, after, strict=True))
        self.decode.append(tokens / seconds)
        self.steps.append(seconds / tokens)
        self.waits.append((share, waited / seconds))

    def _time(self, ids: list[int], params: SamplingParams) -> tuple[float, float]:
        """Seconds of a call, and those of rank 0's collectives, waits included."""
        self.llm.reset_prefix_cache()
        before, began = self._sum_waits(), time.perf_counter()
        self.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        return time.perf_counter() - began, self._sum_waits() - before

    def _sum_waits(self) -> float:
        """Of rank 0, in all groups that it is in, so far."""
        runner: Any = self.llm.loaded.engine.runner
        if not isinstance(runner, LeadingRunner):
            return 0.0
        model: Any = runner.runner.model
        groups = [runner.group]
        if isinstance(model, PipelineStage) and self.tensor > 1:
            groups.append(model.stage.parts.comm)
        return sum(group.seconds for group in groups)

    def clear(self) -> None:
        """Forgets the rounds so far."""
        for found in (self.prompt, self.decode, self.steps, self.waits, self.bubbles):
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
    options = given.parse_args()
    for model in options.models:
        measure(model, options)


def read_ways(text: str) -> list[tuple[int, int]]:
    """ "2x1,1x2" as pairs of tensor and pipeline ranks."""
    return [(int(t), int(p)) for t, _, p in (way.partition("x") for way in text.split(","))]


def measure(model: str, options: argparse.Namespace) -> None:
    """Prints the table of one model."""
    size = {"max_model_len": options.prompt + options.tokens + 16, "max_num_seqs": 1}
    variants = [
        Variant(tensor, pipeline, LLM(
            model, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **size
        ))
        for tensor, pipeline in (ALONE, *options.ways)
    ]  # fmt: skip
    vocab = variants[0].llm.loaded.spec.vocab
    rng = np.random.default_rng(0)
    for i in range(options.rounds + 1):
        ids = rng.integers(0, vocab, options.prompt).tolist()
        for one in variants:
            one.run(ids, options.tokens)
        if i == 0:  # a round to warm up
            for one in variants:
                one.clear()
    print(f"\n{model}\n")
    show(variants)
    for one in variants:
        one.llm.close()


def show(variants: list[Variant]) -> None:
    alone = variants[0]
    print("| ranks | prompt t/s | ÷ one | decode t/s | ÷ one | ms a step "
          "| collectives: prompt | decode |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for one in variants:
        ratios = [
            median(a / b for a, b in zip(own, base, strict=True))
            for own, base in ((one.prompt, alone.prompt), (one.decode, alone.decode))
        ]
        waits = [100 * median(pair[i] for pair in one.waits) for i in (0, 1)]
        print(f"| {one.name} | {median(one.prompt):.1f} | {ratios[0]:.2f} "
              f"| {median(one.decode):.2f} | {ratios[1]:.2f} "
              f"| {1000 * median(one.steps):.2f} | {waits[0]:.1f} % "
              f"| {waits[1]:.1f} % |")  # fmt: skip
    for one in variants:
        if one.bubbles:
            measured, expected = (100 * median(pair[i] for pair in one.bubbles) for i in (0, 1))
            print(f"{one.name}: a prompt's stages waited {measured:.1f} % of the time; "
                  f"(p - 1) / (m + p - 1) is {expected:.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
