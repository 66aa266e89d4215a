"""A cascade: a small model writes as long as it is sure, and a larger one goes on."""

from typing import Any

from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.technique import ProveJob, Technique
from flyweight.prove.techniques.draft_model import ANSWER, PROMPT, make_prompts

SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {"speculative_config": {"method": "cascade", "model": "stories-draft"}},
}


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="cascade",
    what="a cascade: a smaller model writes as long as it is sure",
    workload=f"the opening of a story, {ANSWER} tokens out",
    off="no drafts",
    on="method cascade, model = stories-draft, up to 16 draft tokens",
    metric="itl",
    open=open_side,
    least_share=1.0,
)
