"""Threads: every core computes its part of a step."""

from flyweight.errors import ConfigError
from flyweight.plan.machine import read_machine
from flyweight.prove.engine_side import (
    EngineSide,
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, ANSWER, SEQS = 16, 192, 64, 4


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


def open_side(job: ProveJob, side: str) -> EngineSide:
    threads = job.threads or read_machine().cores
    if threads < 2:
        raise ConfigError(
            "leaves nothing to compare", "threads", value=threads, allowed="2 or more"
        )
    workload = EngineWorkload(make_prompts, PROMPT + ANSWER, SEQS)
    return EngineSide(job, workload, {"threads": threads if side == "on" else 1})


TECHNIQUE = Technique(
    name="threads",
    what="threads: all cores compute a step together",
    workload=f"{REQUESTS} requests, {SEQS} at once, {PROMPT} tokens in and {ANSWER} out",
    off="threads = 1",
    on="threads = all cores, or --threads",
    metric="throughput",
    open=open_side,
    stand_in="wide",
)
