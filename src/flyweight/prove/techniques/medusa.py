"""Medusa: heads on the model's hidden states draft a chain of tokens, verified in one step."""

from flyweight.prove.techniques.draft_model import STORY

DRAFT = 4
TECHNIQUE = STORY.make_technique(
    "medusa",
    "Medusa: each head on the model's hidden state drafts a token",
    f"method medusa, model = stories-medusa, num_speculative_tokens = {DRAFT}",
    {"method": "medusa", "model": "stories-medusa", "num_speculative_tokens": DRAFT},
)
