"""EAGLE: a layer that predicts the model's hidden states drafts, verified in one step."""

from typing import Any

from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.technique import ProveJob, Technique
from flyweight.prove.techniques.draft_model import ANSWER, PROMPT, make_prompts

DRAFT = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {
        "speculative_config": {
            "method": "eagle",
            "model": "stories-eagle",
            "num_speculative_tokens": DRAFT,
        }
    },
}


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="eagle",
    what="EAGLE: a decoder layer on the model's hidden states drafts",
    workload=f"the opening of a story, {ANSWER} tokens out",
    off="no drafts",
    on=f"method eagle, model = stories-eagle, num_speculative_tokens = {DRAFT}",
    metric="itl",
    open=open_side,
    least_share=1.0,
)
