"""Instruction sets: kernels made for what the processor has, against those for any."""

from flyweight.errors import ConfigError
from flyweight.ops.cpu import available_isas
from flyweight.prove.engine_side import (
    EngineSide,
    EngineWorkload,
    PromptLimits,
    count_share,
    make_random_prompts,
)
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, ANSWER, SEQS = 8, 96, 16, 4


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    return make_random_prompts(limits, round, count_share(REQUESTS, share), ANSWER)


def open_side(job: ProveJob, side: str) -> EngineSide:
    """The best is the last that this machine can run."""
    known = available_isas()
    if len(known) < 2:
        raise ConfigError("is the only one of this machine", "isa", value=known[0])
    workload = EngineWorkload(make_prompts, PROMPT + ANSWER, SEQS)
    return EngineSide(job, workload, {"isa": known[-1] if side == "on" else known[0]})


TECHNIQUE = Technique(
    name="isa",
    what="instruction sets: kernels for this processor",
    workload=f"{REQUESTS} requests, {SEQS} at once, {PROMPT} tokens in and {ANSWER} out",
    off="FLYWEIGHT_ISA = scalar: kernels that any processor can run",
    on="the best instruction set of this processor",
    metric="throughput",
    open=open_side,
    exact=False,
)
