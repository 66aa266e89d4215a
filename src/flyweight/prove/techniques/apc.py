"""Prefix caching: many questions about one document compute its K/V once.

The time is nearly all off's, which computes the document for every question; and fewer questions
gain less.  So two pairs of all of them are worth more than six of a part.
"""

from flyweight.bench.workloads import make_ids
from flyweight.prove.engine_side import EngineSide, EngineWorkload, PromptLimits, count_share
from flyweight.prove.figures import LEAST_PAIRS
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

DOCUMENT, QUESTION, ANSWER, REQUESTS, SEQS = 3000, 24, 16, 80, 8
SETTINGS = {"off": {"enable_prefix_caching": False}, "on": {"enable_prefix_caching": True}}


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    """The document of a round, each time with a question of its own."""
    document = make_ids(limits.vocab, limits.length - QUESTION - ANSWER, round)
    first = (round + 1) * REQUESTS
    return [
        TimedPrompt(document + make_ids(limits.vocab, QUESTION, first + i), ANSWER)
        for i in range(count_share(REQUESTS, share))
    ]


def open_side(job: ProveJob, side: str) -> EngineSide:
    workload = EngineWorkload(make_prompts, DOCUMENT + QUESTION + ANSWER, SEQS)
    return EngineSide(job, workload, SETTINGS[side])


TECHNIQUE = Technique(
    name="apc",
    what="prefix caching: K/V of a prompt's known beginning is found, not computed",
    workload=f"W4: {REQUESTS} questions on one document of {DOCUMENT:,} tokens, all sent at once",
    off="enable_prefix_caching = false",
    on="enable_prefix_caching = true, from an empty cache in every run",
    metric="throughput",
    open=open_side,
    seed="1.10x",
    stand_in="long",
    least_share=1 / 8,
    planned=LEAST_PAIRS,
)
