"""Multi-token prediction: the layer that the model's own checkpoint carries proposes tokens.

It drafts as EAGLE's layer does: from a state and the token after it comes the next state, which the
model's own output matrix reads.  The first state of a draft is the model's, after its final norm;
further ones are the layer's own, after the norm of its head, so one layer makes drafts of any
length.

Invariant: as in `statedrafter`.  Knows no family: `models.predictor` plans the layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flyweight.draft.methods import DraftBase, DrafterParts
from flyweight.draft.slotstates import describe_slots
from flyweight.draft.statedrafter import StateDrafter
from flyweight.draft.treegrowth import count_scratch
from flyweight.draft.treerules import TreeRule, make_rule
from flyweight.models.decoder import Decoder, embed_tokens, make_ropes
from flyweight.models.layer import make_layer
from flyweight.models.linear import Parts
from flyweight.models.norms import make_norm
from flyweight.models.predictor import PredictorPlan, plan_predictor
from flyweight.ops.operands import KVLayer
from flyweight.spec import Files, StoredSlots
from flyweight.speculation import SpeculationConfig
from flyweight.speculation_methods import SETTING
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.load import list_slot_kinds, load_slots
from flyweight.wire import F32, Batch, Tensor


@dataclass(frozen=True, slots=True)
class PredictorSource:
    """The layer in the model's own files, every tensor checked.  Drafts are chains, or trees by a
    `rule` that take `scratch` blocks of K/V.
    """

    checkpoint: Checkpoint
    plan: PredictorPlan
    kinds: Mapping[str, Sequence[tuple[tuple[int, ...], str]]]
    rule: TreeRule | None
    scratch: int

    @property
    def name(self) -> str:
        return "prediction layer"

    @property
    def stored(self) -> StoredSlots:
        return describe_slots(self.plan.spec, self.scratch)


def open_source(config: SpeculationConfig, base: DraftBase) -> PredictorSource:
    """Raises `ConfigError` or `CheckpointError`."""
    rule, checkpoint = make_rule(config), base.checkpoint
    assert checkpoint is not None, "a layer of no files"
    files = Files(checkpoint.converted, frozenset(checkpoint.tensors), checkpoint.joined)
    plan = plan_predictor(base.spec, checkpoint.config, files, f"{SETTING}.method")
    kinds = list_slot_kinds(checkpoint, plan.weights)
    named = {f"drafter {name}": parts for name, parts in kinds.items()}
    return PredictorSource(checkpoint, plan, named, rule, count_scratch(rule, base.block_size))


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> StateDrafter:
    assert parts.model is not None and isinstance(parts.source, PredictorSource)
    source, target, limits = parts.source, parts.model, parts.limits
    spec, slots = source.plan.spec, source.plan.weights.slots
    weights = load_slots(source.checkpoint, slots, target.ops)
    own = Parts(target.ops, target.comm, spec, weights)
    layer = PredictionLayer(target, own, limits.max_model_len)
    rejection = config.verifier == "rejection"
    return StateDrafter.make(layer, spec, limits, source.rule, probs=rejection)


class PredictionLayer:
    """The layer of `own`, and what it takes of the target: embedding and output matrix."""

    taps = (-1,)

    def __init__(self, target: Decoder, own: Parts, length: int) -> None:
        self.target, self.ops, self.join = target, target.ops, own.weights["join"]
        self.hidden = own.spec.hidden
        self.enorm, self.hnorm = make_norm(own, "enorm"), make_norm(own, "hnorm")
        self.norm = make_norm(own, "norm")
        self.stack = self.ops.stack([make_layer(own, 0)])
        self.ropes = make_ropes(own.spec, length)

    def make_first(self, taps: Mapping[int, Tensor]) -> Tensor:
        return taps[-1]

    def compute_states(self, batch: Batch, states: F32, kv: Sequence[KVLayer]) -> Tensor:
        """The states [T,H] after the batch's pairs, normed; K and V of the pairs are written."""
        ops = self.ops
        ops.begin(batch)
        embedded = self.enorm(embed_tokens(self.target.parts, batch))
        before = self.hnorm(ops.upload(states))
        residual = ops.linear(ops.concat((embedded, before)), self.join)
        turns = [ops.rotation(batch.positions, *rope) for rope in self.ropes]
        made = self.norm.add(self.stack(residual, kv, batch, turns), residual)
        ops.end()
        return made

    def compute_logits(self, states: Tensor) -> Tensor:
        return self.target.compute_logits(states)
