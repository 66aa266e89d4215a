"""Medusa with a tree: several tokens of each head are verified in one step."""

from flyweight.prove.techniques.draft_model import STORY

PATHS = (
    "[(0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (0, 0, 0), "
    "(0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]"
)
DRAFT = 14  # as many as paths
TECHNIQUE = STORY.make_technique(
    "medusa-tree",
    "Medusa with a tree: several tokens of each head are drafted",
    f"method medusa, model = stories-medusa, a tree of {DRAFT} draft tokens",
    {
        "method": "medusa",
        "model": "stories-medusa",
        "num_speculative_tokens": DRAFT,
        "speculative_token_tree": PATHS,
    },
)
