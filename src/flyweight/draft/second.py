"""Makes the drafter of `draft_model`: by ids where the vocabularies agree, else through text.

Invariant: the second model is loaded and fits the target.
"""

from flyweight.draft.drafter import Drafter
from flyweight.draft.methods import DrafterParts
from flyweight.draft.model import ModelDrafter
from flyweight.draft.textmodel import TextDrafter
from flyweight.kv.blocks import BlockPool
from flyweight.speculation import SpeculationConfig


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> Drafter:
    second, limits = parts.second, parts.limits
    assert second is not None, "a draft model that was not loaded"
    rejection = config.verifier == "rejection"
    if second.spellers is None:
        return ModelDrafter(second.model, second.layers, second.ids, probs=rejection)
    assert not rejection, "refused before the models were loaded"
    pool = BlockPool(limits.blocks, limits.block_size)
    budget = limits.max_num_batched_tokens
    return TextDrafter(second.model, second.layers, pool, second.spellers, budget)
