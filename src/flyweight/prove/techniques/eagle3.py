"""EAGLE-3: a layer that reads the states of three of the model's layers drafts."""

from flyweight.prove.techniques.draft_model import STORY

DRAFT = 5
TECHNIQUE = STORY.make_technique(
    "eagle3",
    "EAGLE-3: a decoder layer on the states of three layers drafts",
    f"method eagle3, model = stories-eagle3, num_speculative_tokens = {DRAFT}",
    {"method": "eagle3", "model": "stories-eagle3", "num_speculative_tokens": DRAFT},
)
