"""K/V in 8 bits: half the bytes that attention reads of a long context."""

from flyweight.prove.engine_side import (
    EngineSide,
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, ANSWER, SEQS = 8, 2048, 64, 8
SETTINGS = {"off": {"kv_cache_dtype": "auto"}, "on": {"kv_cache_dtype": "int8"}}


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, SEQS), SETTINGS[side])


TECHNIQUE = Technique(
    name="kv-types",
    what="K/V quantisation: the cache holds 8 bits a value",
    workload=f"{REQUESTS} sequences at once, {PROMPT:,} tokens in and {ANSWER} out",
    off="kv_cache_dtype = auto: 16 bits",
    on="kv_cache_dtype = int8",
    metric="itl",
    open=open_side,
    exact=False,
    stand_in="long",
)
