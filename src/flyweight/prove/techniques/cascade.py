"""A cascade: a small model writes as long as it is sure, and a larger one goes on."""

from flyweight.prove.techniques.draft_model import STORY

TECHNIQUE = STORY.make_technique(
    "cascade",
    "a cascade: a smaller model writes as long as it is sure",
    "method cascade, model = stories-draft, up to 16 draft tokens",
    {"method": "cascade", "model": "stories-draft"},
)
