"""A side that is an engine with some settings, which replays a workload.

Invariant: K/V has room for `seqs` of the longest sequences, so neither side preempts for lack of
blocks; a workload longer than the model's context is cut to it, and a note says so.  A context
that is too short for any of it is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flyweight.bench.workloads import make_ids
from flyweight.build import build
from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.engine.metrics import EngineMetrics
from flyweight.errors import ConfigError
from flyweight.prove.peak import reset_peak
from flyweight.prove.replay import TimedPrompt, replay
from flyweight.prove.technique import Measurement, ProveJob
from flyweight.text.tokenizer import Tokenizer

BLOCK = 32  # tokens of K/V
SPARE = 4  # blocks beyond what sequences need
LEAST_CONTEXT = 64  # tokens
COUNTED = {
    "steps": "steps",
    "tokens computed": "computed",
    "prompt tokens found in the cache": "cached",
    "draft tokens": "proposed",
    "draft tokens accepted": "accepted",
    "preemptions": "preempted",
}  # figures of a report: fields of `EngineMetrics`


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """What prompts are made of: the model's vocabulary, and tokens of prompt and answer together
    that fit its context, which are `scale` of those that are wanted.
    """

    vocab: int
    length: int
    tokenizer: Tokenizer
    scale: float = 1.0

    def cut_answer(self, tokens: int) -> int:
        """An answer's tokens: its share of a length that is cut, or half of that where it is less
        than half.
        """
        if self.scale == 1:
            return tokens
        return min(tokens, max(int(self.scale * tokens), self.length // 2))


MakePrompts = Callable[[PromptLimits, int, float], Sequence[TimedPrompt]]


@dataclass(frozen=True, slots=True)
class EngineWorkload:
    """`make` gives the prompts of a round, for a share of all; `length` tokens of prompt and answer
    are wanted, and `seqs` sequences are computed at once.  `least` tokens of context are needed.
    """

    make: MakePrompts
    length: int
    seqs: int
    least: int = LEAST_CONTEXT


class EngineSide:
    """An engine of its own."""

    def __init__(
        self, job: ProveJob, workload: EngineWorkload, settings: Mapping[str, Any]
    ) -> None:
        found = describe(find(Settings.of(model=job.model)))
        context = found.spec.context
        found.checkpoint.close()
        if context < workload.least:
            raise ConfigError(
                f"the workload needs a context of {workload.least} tokens, this model has {context}"
            )
        length = min(workload.length, context)
        self.notes: tuple[str, ...] = ()
        if length < workload.length:
            self.notes = (
                f"requests are cut from {workload.length:,} tokens to {length:,}, the model's "
                "context",
            )
        seqs = int(settings.get("max_num_seqs", workload.seqs))
        chosen: dict[str, Any] = {
            "max_num_seqs": seqs,
            "max_model_len": length,
            "blocks": seqs * (-(-length // BLOCK) + 1) + SPARE,
            "block_size": BLOCK,
            "threads": job.threads,
            **settings,
        }
        chosen.setdefault("max_num_batched_tokens", max(512, seqs))
        reset_peak()
        self.loaded = build(Settings.of(model=job.model, **chosen))
        self.loaded.moving.settle()
        self._workload = workload
        self._limits = PromptLimits(
            self.loaded.spec.vocab, length, self.loaded.tokenizer, length / workload.length
        )

    def run(self, round: int, share: float) -> Measurement:
        prompts = self._workload.make(self._limits, round, share)
        before = replace(self.loaded.engine.metrics)
        measured = self.replay(prompts)
        counted = count_work(before, self.loaded.engine.metrics)
        return replace(measured, figures={**measured.figures, **counted})

    def replay(self, prompts: Sequence[TimedPrompt]) -> Measurement:
        """The requests of one run."""
        return replay(self.loaded, prompts)

    def close(self) -> None:
        """Frees the engine."""
        del self.loaded


def count_work(before: EngineMetrics, now: EngineMetrics) -> dict[str, float]:
    """What the engine counted in one run, by what it is called in a report."""
    return {name: getattr(now, field) - getattr(before, field) for name, field in COUNTED.items()}


def make_random_prompts(
    limits: PromptLimits, round: int, count: int, answer: int, beams: int = 0
) -> list[TimedPrompt]:
    """Prompts that fill the length, none of which begins as another does, all due at once."""
    first = (round + 2) * (1 << 20)
    answer = limits.cut_answer(answer)
    length = limits.length - answer
    return [
        TimedPrompt(make_ids(limits.vocab, length, first + i), answer, beams=beams)
        for i in range(count)
    ]


def count_share(count: int, share: float) -> int:
    """A share of so many requests, at least one."""
    return max(1, round(count * share))
