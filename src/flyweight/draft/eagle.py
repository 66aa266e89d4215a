"""EAGLE (Li et al., 2024): one decoder layer proposes tokens from the model's final hidden states.

Invariant: the layer has no norm of its own before attention; embedding and output matrix are the
model's.  T tokens, H hidden, V vocabulary.
"""

from collections.abc import Mapping, Sequence

from flyweight.draft.eaglefolder import EagleSource, load_eagle, open_source
from flyweight.draft.methods import DrafterParts
from flyweight.draft.statedrafter import StateDrafter
from flyweight.models.decoder import Decoder, embed_tokens, make_ropes
from flyweight.models.layer import make_layer
from flyweight.models.linear import Parts
from flyweight.ops.operands import KVLayer, Weights
from flyweight.speculation import SpeculationConfig
from flyweight.wire import F32, Batch, Tensor

__all__ = ["EagleModel", "make_drafter", "open_source"]


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> StateDrafter:
    assert parts.model is not None and isinstance(parts.source, EagleSource)
    source, target, limits = parts.source, parts.model, parts.limits
    model = EagleModel(target, *load_eagle(source, target), limits.max_model_len)
    rejection = config.verifier == "rejection"
    return StateDrafter.make(model, source.spec, limits, source.rule, probs=rejection)


class EagleModel:
    """The layer of `own`, and what it takes of the target: embedding and output matrix."""

    taps = (-1,)

    def __init__(self, target: Decoder, fc: Weights, own: Parts, length: int) -> None:
        self.target, self.ops, self.fc = target, target.ops, fc
        self.hidden = own.spec.hidden
        self.stack = self.ops.stack([make_layer(own, 0)])
        self.ropes = make_ropes(own.spec, length)

    def make_first(self, taps: Mapping[int, Tensor]) -> Tensor:
        return taps[-1]

    def compute_states(self, batch: Batch, states: F32, kv: Sequence[KVLayer]) -> Tensor:
        """The states [T,H] after the batch's pairs, whose K and V are written."""
        ops = self.ops
        ops.begin(batch)
        embedded = embed_tokens(self.target.parts, batch)
        residual = ops.linear(ops.concat((embedded, ops.upload(states))), self.fc)
        turns = [ops.rotation(batch.positions, *rope) for rope in self.ropes]
        ops.add(self.stack(residual, kv, batch, turns), residual)
        ops.end()
        return residual

    def compute_logits(self, states: Tensor) -> Tensor:
        return self.target.compute_logits(states)
