"""Generation without a K/V cache: random workloads have the oracle's answers, and no token is drawn
from K/V that an earlier step computed.
"""

from collections import Counter
from dataclasses import replace

from workload import Harness, Workload, workload

from flyweight.engine.recomputation import Recomputation
from flyweight.engine.step import Plan, StepBudget


class Forgetful(Harness):
    """Without cache, and with a step that holds each sequence whole."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine.add_hook(Recomputation(self.scheduler))
        self.drawn = 0

    def _schedule(self, budget: StepBudget) -> Plan:
        plan = self.watched(budget)
        for chunk in plan.chunks:
            if chunk.seq.request.pooling is None:
                assert chunk.start == 0 and chunk.count == len(chunk.seq.tokens)
                self.drawn += 1
        return plan


def without_drafts(seed: int, **changes: object) -> Workload:
    work = workload(seed)
    return replace(work, guesses="none", limits=replace(work.limits, **changes))


def test_each_step_computes_whole_sequences() -> None:
    drawn = 0
    for seed in range(60):
        limits = {"max_num_batched_tokens": 4096, "max_chunk": None, "scored": 256}
        harness = Forgetful(without_drafts(seed, prefix_caching=False, **limits))
        harness.run()
        drawn += harness.drawn
    assert drawn > 500


def test_answers_are_the_oracles_in_little_memory_and_short_steps() -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        # a token takes as many steps as its sequence has tokens, at most
        harness = Harness(without_drafts(seed, prefix_caching=False), slowness=48)
        harness.engine.add_hook(Recomputation(harness.scheduler))
        harness.run()
        counts += harness.counts
    assert min(counts["search"], counts["mid-prefill abort"], counts["vector"]) > 4
