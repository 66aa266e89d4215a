"""Chunked prefill: a short prompt does not wait until all of a long one is computed."""

from typing import Any

from flyweight.bench.workloads import make_ids
from flyweight.describe import describe
from flyweight.prove.engine_side import EngineSide, EngineWorkload, PromptLimits
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

BLOCKER, VICTIM, ANSWER = 3500, 32, 16
DUE = 0.002  # seconds after the blocker: while its first step is computed
BUDGET, CHUNK = 512, 384  # tokens of a step, and of one prompt in a step
WHOLE = BLOCKER + VICTIM  # tokens of a step that holds both prompts


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    """The blocker, and the victim shortly after it."""
    seed = 2 * (round + 2)
    return [
        TimedPrompt(make_ids(limits.vocab, limits.length - ANSWER, seed), ANSWER, judged=False),
        TimedPrompt(make_ids(limits.vocab, VICTIM, seed + 1), ANSWER, at=DUE),
    ]


def open_side(job: ProveJob, side: str) -> EngineSide:
    """Parts shrink with a prompt that is cut, so that it still has as many."""
    found = describe(job.model)
    found.checkpoint.close()
    scale = min(1.0, found.spec.context / (BLOCKER + ANSWER))
    settings: dict[str, Any] = {"max_num_batched_tokens": WHOLE}
    if side == "on":
        budget, chunk = (max(VICTIM, round(scale * count)) for count in (BUDGET, CHUNK))
        settings = {"max_num_batched_tokens": budget, "long_prefill_token_threshold": chunk}
    return EngineSide(job, EngineWorkload(make_prompts, BLOCKER + ANSWER, 2), settings)


TECHNIQUE = Technique(
    name="blocker",
    what="chunked prefill: a long prompt is computed in parts, next to other requests",
    workload=f"W5: a prompt of {BLOCKER:,} tokens, and one of {VICTIM} that is due "
    f"{1e3 * DUE:g} ms later, whose times are compared",
    off=f"max_num_batched_tokens = {WHOLE:,}: the long prompt is one step",
    on=f"max_num_batched_tokens = {BUDGET}, long_prefill_token_threshold = {CHUNK}, "
    "less where the long prompt is cut",
    metric="ttft",
    open=open_side,
    stand_in="long",
    least_share=1.0,
)
