"""Makes the drafter of a second model: by ids where the vocabularies agree, else through text.

Invariant: the second model is loaded and fits the target.
"""

from flyweight.draft.drafter import Drafter
from flyweight.draft.handover import WRITE_ON, HandOver
from flyweight.draft.latetokens import LateTokens
from flyweight.draft.methods import DrafterParts
from flyweight.draft.model import ModelDrafter
from flyweight.draft.textmodel import TextDrafter
from flyweight.kv.blocks import BlockPool
from flyweight.speculation import SpeculationConfig


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> Drafter:
    """The drafter of `draft_model`."""
    return make_pair_drafter(config, parts, WRITE_ON)


def make_pair_drafter(
    config: SpeculationConfig, parts: DrafterParts, hand_over: HandOver
) -> Drafter:
    second, limits = parts.second, parts.limits
    assert second is not None, "a draft model that was not loaded"
    rejection = config.verifier == "rejection"
    if second.spellers is None:
        late = LateTokens(limits.blocks, limits.block_size, limits.max_num_batched_tokens)
        own = second.model, second.layers, late, second.ids
        more = second.ids is None and second.model.spec.vocab > parts.vocab
        vocab = parts.vocab if more else None
        return ModelDrafter(*own, vocab=vocab, probs=rejection, hand_over=hand_over)
    assert not rejection, "refused before the models were loaded"
    pool = BlockPool(limits.blocks, limits.block_size)
    own_text = second.model, second.layers, pool, second.spellers, limits.max_num_batched_tokens
    return TextDrafter(*own_text, hand_over)
