"""EAGLE: a layer that predicts the model's hidden states drafts, verified in one step."""

from flyweight.prove.techniques.draft_model import STORY

DRAFT = 5
TECHNIQUE = STORY.make_technique(
    "eagle",
    "EAGLE: a decoder layer on the model's hidden states drafts",
    f"method eagle, model = stories-eagle, num_speculative_tokens = {DRAFT}",
    {"method": "eagle", "model": "stories-eagle", "num_speculative_tokens": DRAFT},
)
