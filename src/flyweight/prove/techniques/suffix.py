"""Suffix decoding: the likeliest continuation of the longest known suffix is verified in one step.

The prompt is that of prompt lookup, so both methods can be compared.
"""

from typing import Any

from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.technique import ProveJob, Technique
from flyweight.prove.techniques.ngram import ANSWER, DRAFT, PROMPT, make_prompts

SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {"speculative_config": {"method": "suffix", "num_speculative_tokens": DRAFT}},
}


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="suffix",
    what="suffix decoding: the likeliest continuation of the longest known suffix is drafted",
    workload=f"W7: a repetitive manual of {PROMPT:,} tokens, {ANSWER} tokens out",
    off="no drafts",
    on=f"method suffix, num_speculative_tokens = {DRAFT}",
    metric="itl",
    open=open_side,
    least_share=1.0,
)
