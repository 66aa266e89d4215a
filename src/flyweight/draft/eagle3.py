"""EAGLE-3 (Li et al., 2025): one decoder layer proposes tokens from the states of several layers.

What the model's layers left, low to high, becomes one state by `fc`.  The layer's attention reads
the normed embedding and the normed state side by side, and adds to the state.  Its output matrix
may know a part of the vocabulary only.

Invariant: logits are of normed states; the states that are handed on are normed in EAGLE-3.1 only.
T tokens, R rows, H hidden, V vocabulary, D draft vocabulary.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flyweight.draft.eagle3folder import Eagle3Layout, Eagle3Source, load_eagle3, open_source
from flyweight.draft.methods import DrafterParts
from flyweight.draft.statedrafter import StateDrafter
from flyweight.models.decoder import Decoder, embed_tokens, make_ropes
from flyweight.models.layer import make_layer
from flyweight.models.linear import Parts
from flyweight.models.norms import make_norm
from flyweight.ops.operands import KVLayer
from flyweight.speculation import SpeculationConfig
from flyweight.wire import F32, Batch, Tensor

__all__ = ["Eagle3Model", "make_drafter", "open_source"]


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> StateDrafter:
    assert parts.model is not None and isinstance(parts.source, Eagle3Source)
    source, target, limits = parts.source, parts.model, parts.limits
    own = load_eagle3(source, target)
    model = Eagle3Model(target, own, source.layout, limits.max_model_len)
    rejection = config.verifier == "rejection"
    return StateDrafter.make(model, source.spec, limits, source.rule, probs=rejection)


class Eagle3Model:
    """The layer of `own`; where it has no embedding or output matrix it takes the target's."""

    def __init__(self, target: Decoder, own: Parts, layout: Eagle3Layout, length: int) -> None:
        self.target, self.own, self.layout = target, own, layout
        self.ops, self.hidden, self.taps = own.ops, own.spec.hidden, layout.taps
        names = "embed_norm", "state_norm", "norm", "taps_norm", "none"
        self.embed_norm, self.state_norm, norm, self.taps_norm, plain = (
            make_norm(own, name) for name in names
        )
        self.tap_norms = [make_norm(own, f"tap_norm.{i}") for i in range(len(layout.taps))]
        self.out_norm, self.logits_norm = (norm, plain) if layout.normed_output else (plain, norm)
        self.layer, self.ropes = make_layer(own, 0), make_ropes(own.spec, length)
        self.embedding = own if "embed" in own.weights else target.parts

    def make_first(self, taps: Mapping[int, Tensor]) -> Tensor:
        each = zip(self.tap_norms, self.taps, strict=True)
        tapped = self.ops.concat([norm(taps[tap]) for norm, tap in each])
        return self.ops.linear(self.taps_norm(tapped), self.own.weights["fc"])

    def compute_states(self, batch: Batch, states: F32, kv: Sequence[KVLayer]) -> Tensor:
        """The states [T,H] after the batch's pairs, whose K and V are written."""
        ops, layer = self.ops, self.layer
        ops.begin(batch)
        embedded = self.embed_norm(embed_tokens(self.embedding, batch))
        given = ops.upload(states)
        normed = self.state_norm(given)
        residual = ops.concat((normed if self.layout.normed_residual else given,))  # a copy
        turns = [ops.rotation(batch.positions, *rope) for rope in self.ropes]
        turn = turns[-1 if layer.rope is None else layer.rope]
        both = ops.concat((embedded, normed))  # [T,2H]
        ops.add(layer(both, residual, kv[0], batch, turn), residual)
        made = self.out_norm(residual)
        ops.end()
        return made

    def compute_logits(self, states: Tensor) -> Tensor:
        """[R,H] -> [R,V]: minus infinity where it does not know a token."""
        normed = self.logits_norm(states)
        if "head" not in self.own.weights:
            return self.target.compute_logits(normed)
        logits = self.ops.linear(normed, self.own.weights["head"])  # [R,D]
        if self.layout.ids is None:
            return logits
        wide = np.full((len(states), self.target.spec.vocab), -np.inf, np.float32)
        wide[:, self.layout.ids] = self.ops.fetch(logits)
        return self.ops.upload(wide)
