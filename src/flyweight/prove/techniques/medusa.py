"""Medusa: heads on the model's hidden states draft a chain of tokens, verified in one step."""

from typing import Any

from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.technique import ProveJob, Technique
from flyweight.prove.techniques.draft_model import ANSWER, PROMPT, make_prompts

DRAFT = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {
        "speculative_config": {
            "method": "medusa",
            "model": "stories-medusa",
            "num_speculative_tokens": DRAFT,
        }
    },
}


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="medusa",
    what="Medusa: each head on the model's hidden state drafts a token",
    workload=f"the opening of a story, {ANSWER} tokens out",
    off="no drafts",
    on=f"method medusa, model = stories-medusa, num_speculative_tokens = {DRAFT}",
    metric="itl",
    open=open_side,
    least_share=1.0,
)
