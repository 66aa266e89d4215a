"""Batching: five requests at once against the same five after one another."""

from flyweight.prove.bounded_side import BoundedSide
from flyweight.prove.engine_side import (
    EngineWorkload,
    PromptLimits,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, ANSWER = 5, 64, 64
SEQS = {"off": 1, "on": REQUESTS}


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, REQUESTS, ANSWER)


def open_side(job: ProveJob, side: str) -> BoundedSide:
    workload = EngineWorkload(make_prompts, PROMPT + ANSWER, SEQS[side])
    return BoundedSide(job, workload, {})


TECHNIQUE = Technique(
    name="batching",
    what="batching: several requests in a step",
    workload=f"W13: {REQUESTS} requests, {PROMPT} tokens in and {ANSWER} out",
    off="max_num_seqs = 1: each begins when the one before has ended",
    on=f"max_num_seqs = {REQUESTS}: all at once",
    metric="throughput",
    open=open_side,
    seed="3.75x",
    least_share=1.0,
)
