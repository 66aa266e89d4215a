"""Prompt lookup: what followed the same tokens earlier is verified in one step."""

from typing import Any

from flyweight.prove.engine_side import EngineSide, EngineWorkload, PromptLimits
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import ProveJob, Technique

PROMPT, ANSWER, DRAFT = 4000, 96, 10
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {"speculative_config": {"method": "ngram", "num_speculative_tokens": DRAFT}},
}
STEP = (
    "Step {number}: Open the valve. Wait for the green light. Close the valve. "
    "Write the number in the book.\n"
)


def make_prompts(limits: PromptLimits, round: int, share: float) -> list[TimedPrompt]:
    """A manual whose steps differ in their number; another beginning in every round."""
    length, first = limits.length - ANSWER, 100 * (round + 2)
    text = "".join(STEP.format(number=first + i) for i in range(length // 8 + 1))
    tokens = limits.tokenizer.encode(text, parse_special=False)
    return [TimedPrompt(tokens[:length], ANSWER)]


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="ngram",
    what="prompt lookup: tokens that followed the same text before are drafted",
    workload=f"W7: a repetitive manual of {PROMPT:,} tokens, {ANSWER} tokens out",
    off="no drafts",
    on=f"method ngram, num_speculative_tokens = {DRAFT}",
    metric="itl",
    open=open_side,
    seed="1.06x",
    least_share=1.0,
)
