"""Medusa with a tree: several tokens of each head are verified in one step."""

from typing import Any

from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.technique import ProveJob, Technique
from flyweight.prove.techniques.draft_model import ANSWER, PROMPT, make_prompts

PATHS = (
    "[(0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (0, 0, 0), "
    "(0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]"
)
DRAFT = 14  # as many as paths
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {
        "speculative_config": {
            "method": "medusa",
            "model": "stories-medusa",
            "num_speculative_tokens": DRAFT,
            "speculative_token_tree": PATHS,
        }
    },
}


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="medusa-tree",
    what="Medusa with a tree: several tokens of each head are drafted",
    workload=f"the opening of a story, {ANSWER} tokens out",
    off="no drafts",
    on=f"method medusa, model = stories-medusa, a tree of {DRAFT} draft tokens",
    metric="itl",
    open=open_side,
    least_share=1.0,
)
