"""EAGLE with trees: the likeliest paths of the layer are verified in one step."""

from typing import Any

from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.technique import ProveJob, Technique
from flyweight.prove.techniques.draft_model import ANSWER, PROMPT, make_prompts

DRAFT, WIDTH = 16, 4
SETTINGS: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {
        "speculative_config": {
            "method": "eagle",
            "model": "stories-eagle",
            "num_speculative_tokens": DRAFT,
            "tree_width": WIDTH,
        }
    },
}


def open_side(job: ProveJob, side: str) -> EngineSide:
    return EngineSide(job, EngineWorkload(make_prompts, PROMPT + ANSWER, 1), SETTINGS[side])


TECHNIQUE = Technique(
    name="eagle-tree",
    what="EAGLE with trees: the likeliest paths are drafted",
    workload=f"the opening of a story, {ANSWER} tokens out",
    off="no drafts",
    on=f"method eagle, model = stories-eagle, a tree of {DRAFT} draft tokens",
    metric="itl",
    open=open_side,
    least_share=1.0,
)
