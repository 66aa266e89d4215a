"""EAGLE with trees: the likeliest paths of the layer are verified in one step."""

from flyweight.prove.techniques.draft_model import STORY

DRAFT, WIDTH = 16, 4
TECHNIQUE = STORY.make_technique(
    "eagle-tree",
    "EAGLE with trees: the likeliest paths are drafted",
    f"method eagle, model = stories-eagle, a tree of {DRAFT} draft tokens",
    {
        "method": "eagle",
        "model": "stories-eagle",
        "num_speculative_tokens": DRAFT,
        "tree_width": WIDTH,
    },
)
