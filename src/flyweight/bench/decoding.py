"""Ways to choose tokens, timed on the same prompts: greedy, sampling among the best, beam search.

Invariant: ways take turns in every round, and each answers the same prompt with the same number of
tokens; a ratio is made within a round, and only then is the middle taken.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from flyweight.bench.kernels import RunListener
from flyweight.bench.rows import Spread
from flyweight.bench.workloads import make_ids
from flyweight.config import whole
from flyweight.llm import LLM
from flyweight.params.tasks import MAX_BEAMS, BeamSearchParams
from flyweight.types import SamplingParams

GREEDY, TOP_K, BEAM = "greedy", "top-k", "beam"
MOST_LENGTH, MOST_ROUNDS = 1 << 20, 1000
BLOCK, SPARE = 32, 4  # tokens of a block of K/V; blocks beyond what sequences need


@dataclass(frozen=True, slots=True)
class DecodingTest:
    """A prompt of `input_len` tokens and an answer of `output_len`.  Raises `ConfigError`."""

    model: str
    input_len: int = 32
    output_len: int = 100
    top_k: int = 40
    beam_width: int = 4
    rounds: int = 5
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("input_len", self.input_len, 1, MOST_LENGTH)
        whole("output_len", self.output_len, 1, MOST_LENGTH)
        whole("top_k", self.top_k, 1, MOST_LENGTH)
        whole("beam_width", self.beam_width, 1, MAX_BEAMS)
        whole("repetitions", self.rounds, 1, MOST_ROUNDS)

    def make_options(self) -> dict[str, Any]:
        length = self.input_len + self.output_len
        return {
            **self.engine,
            "max_num_seqs": self.beam_width,
            "max_model_len": length,
            "block_size": BLOCK,
            "blocks": self.beam_width * (-(-length // BLOCK) + 1) + SPARE,
            "enable_prefix_caching": False,
        }


@dataclass(frozen=True, slots=True)
class DecodingResult:
    """Median seconds of an answer, and how they compare with greedy ones of the same round."""

    way: str
    seconds: float
    ratio: Spread
    copied: int  # shared blocks that were copied before a write, in all rounds


def measure_decoding(test: DecodingTest, listener: RunListener) -> list[DecodingResult]:
    """One result a way, greedy first."""
    times: dict[str, list[float]] = {way: [] for way in (GREEDY, TOP_K, BEAM)}
    copied = dict.fromkeys(times, 0)
    with LLM(test.model, notify=listener, **test.make_options()) as llm:
        llm.loaded.moving.settle()
        total = test.rounds + 1
        for turn in range(total):
            listener.round(f"round {turn}" if turn else "warm-up", turn, total)
            prompt = make_ids(llm.loaded.spec.vocab, test.input_len, turn)
            for way in times:
                before = llm.stats()["copied"]
                seconds = time_answer(llm, test, way, prompt)
                if turn:
                    times[way].append(seconds)
                    copied[way] += llm.stats()["copied"] - before
    return [
        DecodingResult(
            way,
            median(found),
            Spread.of([a / b for a, b in zip(found, times[GREEDY], strict=True)]),
            copied[way],
        )
        for way, found in times.items()
    ]


def time_answer(llm: LLM, test: DecodingTest, way: str, prompt: list[int]) -> float:
    """Seconds of one answer; a search gives as many tokens as the others."""
    start = time.perf_counter()
    if way == BEAM:
        params = BeamSearchParams(test.beam_width, test.output_len, ignore_eos=True)
        llm.beam_search(prompt, params, use_tqdm=False)
    else:
        heat: dict[str, Any] = {"temperature": 0}
        if way == TOP_K:
            heat = {"temperature": 0.8, "top_k": test.top_k, "seed": 0}
        options = SamplingParams(max_tokens=test.output_len, ignore_eos=True, **heat)
        llm.generate(prompt, options, use_tqdm=False)
    return time.perf_counter() - start
