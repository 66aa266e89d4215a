"""Few-shot prompts: labelled examples before a text that is to be classified (S2-10).

What is judged is accuracy, on the same texts; time and tokens are what it costs.
"""

import time
from dataclasses import replace
from pathlib import Path

from flyweight.describe import SilentListener
from flyweight.eval.classify import count_prompt_tokens, make_classifier
from flyweight.eval.labelled import ClassifyPlan, read_labelled
from flyweight.llm import LLM
from flyweight.prove.engine_side import count_share, count_work
from flyweight.prove.technique import CHANCE, Measurement, ProveJob, Technique

TEXTS = Path(__file__).parent.parent / "reviews.jsonl"
SHOTS, SEQS, LONGEST = 4, 16, 512


class ClassifySide:
    """Classifies all texts, one after the other, by the likelihood of each label."""

    notes = (
        "the time to a first token is that to a text's label",
        "the course has 85 % in 10 ms without examples, and 95 % in 20 ms with them",
    )

    def __init__(self, job: ProveJob, side: str) -> None:
        self._llm = LLM(
            job.model, notify=SilentListener(), threads=job.threads, max_num_seqs=SEQS,
            max_model_len=LONGEST,
        )  # fmt: skip
        self._llm.loaded.moving.settle()
        plan, examples = ClassifyPlan.of(read_labelled(str(TEXTS)), (), SHOTS, 0), side == "on"
        self._labels = [sample.label for sample in plan.samples]
        self._prompts = [plan.make_prompt(i, examples=examples) for i in range(len(plan.samples))]
        self._tokens = count_prompt_tokens(self._llm, plan, self._prompts, examples)
        self._classify = make_classifier(self._llm, plan.labels, "likelihood")

    def run(self, round: int, share: float) -> Measurement:
        """The same texts in every round, with the same examples, from an empty prefix cache."""
        engine, count = self._llm.loaded.engine, count_share(len(self._labels), share)
        engine.scheduler.pool.forget()
        before, right, times = replace(engine.metrics), list[bool](), list[float]()
        labels, tokens = self._labels[:count], sum(self._tokens[:count])
        for label, prompt in zip(labels, self._prompts[:count], strict=True):
            began = time.perf_counter()
            right.append(self._classify(prompt) == label)
            times.append(time.perf_counter() - began)
        return Measurement(
            sum(times), count, tokens, 0, ttfts=tuple(times), right=tuple(right),
            figures={
                CHANCE: max(map(labels.count, labels)) / count,
                "tokens of a prompt": tokens / count,
                **count_work(before, engine.metrics),
            },
        )  # fmt: skip

    def close(self) -> None:
        self._llm.close()


TECHNIQUE = Technique(
    name="few-shot",
    what="few-shot prompts: labelled examples come before a text that is classified",
    workload="20 short texts, good or bad, each by the likelihood of its label",
    off="zero-shot: an instruction and the text",
    on=f"few-shot: {SHOTS} other texts with their labels as well",
    metric="throughput",
    open=ClassifySide,
    seed="0.5x",
    exact=False,
    least_share=1.0,
    same=("requests",),
)
