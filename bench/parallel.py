"""One model over several processes beside one process: decoding and prompts in turn, the share of
collectives in tensor-parallel steps, and the bubble of pipeline stages beside its formula.

    python bench/parallel.py MODEL [--rounds 5] [--prompt 512] [--tokens 32]

All have the same threads in all.  Ratios are medians of the rounds' own ratios to one process.
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

SIZES = ((1, 1), (2, 1), (1, 2))  # tensor, pipeline


@dataclass
class Variant:
    """A model over `tensor` x `pipeline` processes, and what was measured."""

    tensor: int
    pipeline: int
    llm: LLM
    prompt: list[float] = field(default_factory=list)  # tokens a second
    decode: list[float] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # of prompts and decoding
    bubbles: list[tuple[float, float]] = field(default_factory=list)  # measured, by the formula

    @property
    def name(self) -> str:
        return f"tp {self.tensor} pp {self.pipeline}"

    def run(self, ids: list[int], tokens: int) -> None:
        """One round: a prompt, then decoding."""
        first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        more = SamplingParams(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
        seconds, prompt_wait = self._time(ids, first)
        self.prompt.append(len(ids) / seconds)
        self._note_bubble()
        begin, _ = self._time(ids[:8], first)
        seconds, decode_wait = self._time(ids[:8], more)
        self.decode.append(tokens / (seconds - begin))
        self.waits.append((prompt_wait, decode_wait))

    def _time(self, ids: list[int], params: SamplingParams) -> tuple[float, float]:
        """Seconds of a call, and the share of rank 0's collectives, waits included."""
        self.llm.reset_prefix_cache()
        runner: Any = self.llm.loaded.engine.runner
        group = runner.group if isinstance(runner, LeadingRunner) else None
        before = group.seconds if group else 0.0
        began = time.perf_counter()
        self.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        return seconds, (group.seconds - before) / seconds if group else 0.0

    def _note_bubble(self) -> None:
        runner: Any = self.llm.loaded.engine.runner
        model = runner.runner.model if isinstance(runner, LeadingRunner) else None
        if isinstance(model, PipelineStage):
            self.bubbles.append((model.times.measured, model.times.expected))
            model.times.clear()


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("model")
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--prompt", type=int, default=512)
    given.add_argument("--tokens", type=int, default=32)
    options = given.parse_args()
    size = {"max_model_len": options.prompt + options.tokens + 16, "max_num_seqs": 1}
    variants = [
        Variant(tensor, pipeline, LLM(
            options.model, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, **size
        ))
        for tensor, pipeline in SIZES
    ]  # fmt: skip
    vocab = variants[0].llm.loaded.spec.vocab
    rng = np.random.default_rng(0)
    for i in range(options.rounds + 1):
        ids = rng.integers(0, vocab, options.prompt).tolist()
        for one in variants:
            one.run(ids, options.tokens)
        if i == 0:  # a round to warm up
            for one in variants:
                one.prompt.clear(), one.decode.clear(), one.waits.clear(), one.bubbles.clear()
    show(variants)


def show(variants: list[Variant]) -> None:
    alone = variants[0]
    print("| ranks | prompt t/s | ÷ one | decode t/s | ÷ one | collectives: prompt | decode |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for one in variants:
        ratios = [
            median(a / b for a, b in zip(own, base, strict=True))
            for own, base in ((one.prompt, alone.prompt), (one.decode, alone.decode))
        ]
        waits = [100 * median(pair[i] for pair in one.waits) for i in (0, 1)]
        print(f"| {one.name} | {median(one.prompt):.1f} | {ratios[0]:.2f} "
              f"| {median(one.decode):.2f} | {ratios[1]:.2f} | {waits[0]:.1f} % "
              f"| {waits[1]:.1f} % |")  # fmt: skip
    for one in variants:
        if one.bubbles:
            measured, expected = (100 * median(pair[i] for pair in one.bubbles) for i in (0, 1))
            print(f"{one.name}: a prompt's stages waited {measured:.1f} % of the time; "
                  f"(p - 1) / (m + p - 1) is {expected:.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
