"""A cascade: a small model writes as long as it is sure, and hands over to the large one, which
keeps what it would have written itself, and goes on from there.

It drafts as `draft_model` does, with drafts of the length that the small model's certainty gives.
Invariant: the text is the large model's own.
"""

from flyweight.draft import second
from flyweight.draft.drafter import Drafter
from flyweight.draft.handover import HandOver
from flyweight.draft.methods import DrafterParts
from flyweight.speculation import SpeculationConfig


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> Drafter:
    hand_over = HandOver(float(config.options["cascade_min_token_prob"]))
    return second.make_pair_drafter(config, parts, hand_over)
