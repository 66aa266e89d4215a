"""Pipeline parallelism: two processes have half of the layers each, with the same threads."""

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

REQUESTS, PROMPT, ANSWER = 4, 512, 1  # only steps of prompts are cut into micro-batches


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


WORKLOAD = RankWorkload(
    EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SpeedQuestion(PROMPT, PROMPT, (1,)), "prompt"
)


def open_side(job: ProveJob, side: str) -> RankedSide:
    return RankedSide(job, WORKLOAD, side, {"pipeline_parallel_size": RANKS})


TECHNIQUE = Technique(
    name="pipeline-parallel",
    what="pipeline parallelism: processes have consecutive layers each",
    workload=f"{REQUESTS} prompts after one another, {PROMPT} tokens in and {ANSWER} out",
    off="one process with all threads",
    on=f"pipeline_parallel_size = {RANKS}: processes with the same threads in all",
    metric="throughput",
    open=open_side,
    stand_in="wide",
)
