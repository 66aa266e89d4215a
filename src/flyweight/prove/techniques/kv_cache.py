"""The K/V cache: a token reads what earlier steps computed, instead of computing it again."""

from flyweight.prove.engine_side import (
    EngineSide,
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, ANSWER = 4, 64, 128


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


def open_side(job: ProveJob, side: str) -> EngineSide:
    workload = EngineWorkload(make_prompts, PROMPT + ANSWER, 1)
    return EngineSide(job, workload, {"kv_cache": side == "on", "enable_prefix_caching": False})


TECHNIQUE = Technique(
    name="kv-cache",
    what="K/V cache: K and V of earlier tokens are kept",
    workload=f"{REQUESTS} requests after one another, {PROMPT} tokens in and {ANSWER} out",
    off="kv_cache = false: each token computes the whole sequence again",
    on="kv_cache = true",
    metric="throughput",
    open=open_side,
)
