"""Tensor parallelism: two processes compute a part of every layer each, with the same threads."""

from flyweight.planning.speed import SpeedQuestion
from flyweight.prove.engine_side import (
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.ranked_side import RANKS, RankedSide, RankWorkload
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, ANSWER = 4, 32, 48


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


WORKLOAD = RankWorkload(
    EngineWorkload(make_prompts, PROMPT + ANSWER, 1),
    SpeedQuestion(PROMPT, PROMPT + ANSWER // 2, (1,)),
    "decode",
)


def open_side(job: ProveJob, side: str) -> RankedSide:
    return RankedSide(job, WORKLOAD, side, {"tensor_parallel_size": RANKS})


TECHNIQUE = Technique(
    name="tensor-parallel",
    what="tensor parallelism: processes compute a part of every layer each",
    workload=f"{REQUESTS} requests after one another, {PROMPT} tokens in and {ANSWER} out",
    off="one process with all threads",
    on=f"tensor_parallel_size = {RANKS}: processes with the same threads in all",
    metric="itl",
    open=open_side,
    exact=False,  # products are added in another order
    stand_in="wide",
)
