"""Concurrency: many sequences in a step read the weights once."""

from flyweight.prove.bounded_side import BoundedSide
from flyweight.prove.engine_side import (
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, ANSWER = 150, 16, 16
SEQS = {"off": 8, "on": 128}


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


def open_side(job: ProveJob, side: str) -> BoundedSide:
    workload = EngineWorkload(make_prompts, PROMPT + ANSWER, SEQS[side])
    return BoundedSide(job, workload, {})


TECHNIQUE = Technique(
    name="stress",
    what="concurrency: more sequences in a step",
    workload=f"W6: {REQUESTS} requests at once, {PROMPT} tokens in and {ANSWER} out",
    off=f"max_num_seqs = {SEQS['off']}",
    on=f"max_num_seqs = {SEQS['on']}",
    metric="throughput",
    open=open_side,
    seed="1.09x",
    stand_in="wide",
    least_share=1.0,
)
