"""Continuous batching: a request starts when another ends, not when its whole batch does."""

from flyweight.bench.workloads import make_ids
from flyweight.prove.engine_side import EngineSide, EngineWorkload, PromptLimits, count_share
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

REQUESTS, PROMPT, SEQS = 64, 8, 8
LONG, SHORT, EVERY = 160, 8, 8  # tokens of answers: one of so many is long


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    first, longest = (round + 2) * (1 << 20), limits.cut_answer(LONG)
    prompt = min(PROMPT, limits.length - longest)
    return [
        TimedPrompt(make_ids(limits.vocab, prompt, first + i), SHORT if i % EVERY else longest)
        for i in range(count_share(REQUESTS, share))
    ]


def open_side(job: ProveJob, side: str) -> EngineSide:
    workload = EngineWorkload(make_prompts, PROMPT + LONG, SEQS)
    return EngineSide(job, workload, {"scheduler": "continuous" if side == "on" else "static"})


TECHNIQUE = Technique(
    name="continuous",
    what="continuous batching: a request starts as soon as another has ended",
    workload=f"{REQUESTS} requests in {SEQS} seats, {PROMPT} tokens in; each {EVERY}th answer has "
    f"{LONG} tokens, the others {SHORT}",
    off="scheduler = static: a batch starts when all of the one before have ended",
    on="scheduler = continuous",
    metric="throughput",
    open=open_side,
    seed="23x",  # "up to", and the paper's, not a measurement of ours
    stand_in="wide",
    least_share=0.5,
)
