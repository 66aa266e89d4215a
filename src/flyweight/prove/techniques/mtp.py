"""Multi-token prediction: the layer that the model's own files carry drafts."""

from dataclasses import replace

from flyweight.prove.techniques.draft_model import STORY

DRAFT = 3
TECHNIQUE = replace(
    STORY.make_technique(
        "mtp",
        "multi-token prediction: a layer in the model's own files drafts",
        f"method mtp, num_speculative_tokens = {DRAFT}",
        {"method": "mtp", "num_speculative_tokens": DRAFT},
    ),
    stand_in="predicting",
)
