"""What most decoders share, as data: reading a config.json into a `ModelSpec`, and the weight plan
of a decoder under a family's tensor names.

Invariant: a plan names every tensor the model reads and the shape each slot must have; nothing is
read here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from flyweight.errors import CheckpointError
from flyweight.models.config import (
    ACTS,
    LIMIT,
    MAX_LAYERS,
    MOST_POSITIONS,
    Config,
    read_choice,
    read_flag,
    read_integer,
    read_layer_choices,
    read_real,
)
from flyweight.models.rope import read_rope_spec
from flyweight.spec import (
    Files,
    KVGroup,
    LayerSpec,
    ModelSpec,
    NormSpec,
    SlotPlan,
    Source,
    WeightPlan,
)

TOP = ("embed", "positions", "norm", "layer", "widen", "narrow")
MOST_BLOCKS = 1 << 15  # single experts and latent heads; the largest published models have 27,000


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The tensor names of a family; all but the top ones are below `layer` and a number.

    `qkv` is one fused matrix or three; `up` gate and up, one fused matrix of both, or the up
    projection alone; `widen` and `narrow` lead from the embedding's width to the layers' and back.
    Empty names are not there; `base` is a prefix some checkpoints leave out.
    """

    embed: str = "model.embed_tokens"
    positions: str = ""
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers."
    attn_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    attn_post: str = ""
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_post: str = ""
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    widen: str = ""
    narrow: str = ""
    base: str = ""

    def drop_base(self) -> "TensorNames":
        """The names in a checkpoint that leaves out `base`."""
        top = {k: getattr(self, k).removeprefix(self.base) for k in TOP}
        return replace(self, **top)


def make_gated_spec(config: Config, family: str, rotary: bool = True) -> ModelSpec:
    """The spec of a plain Llama: pre-norm, rotary positions, grouped queries, a gated MLP.  The
    family changes what it does otherwise.  Without `rotary` positions there are no ropes.
    """
    hidden, heads = read_integer(config, "hidden_size"), read_integer(config, "num_attention_heads")
    kv_heads = read_integer(config, "num_key_value_heads", heads)
    head = read_integer(config, "head_dim", hidden // heads or None)
    if heads % kv_heads:
        raise CheckpointError(
            f"config: {heads} heads do not divide over num_key_value_heads = {kv_heads}"
        )
    if heads * head > LIMIT:
        raise CheckpointError(
            f"config: {heads} heads of {head} elements; at most {LIMIT} elements in all"
        )
    if rotary and head % 2:
        raise CheckpointError(
            f"config: head_dim = {head} is odd; rotary positions need an even one"
        )
    layer = LayerSpec(
        heads=heads,
        head=head,
        kv=KVGroup(kv_heads, head, head),
        inner=read_integer(config, "intermediate_size"),
        act=read_choice(config, "hidden_act", ACTS, "silu"),
    )
    return ModelSpec(
        family=family,
        hidden=hidden,
        vocab=read_integer(config, "vocab_size"),
        context=read_integer(config, "max_position_embeddings", 2048, MOST_POSITIONS),
        norm=NormSpec(read_real(config, "rms_norm_eps", 1e-6)),
        ropes=(read_rope_spec(config, head),) if rotary else (),
        layers=(layer,) * read_integer(config, "num_hidden_layers", most=MAX_LAYERS),
        tie=read_flag(config, "tie_word_embeddings"),
    )


def change_layers(spec: ModelSpec, change: Callable[[int, LayerSpec], LayerSpec]) -> ModelSpec:
    """The spec with every layer changed, by its number."""
    return replace(spec, layers=tuple(change(i, layer) for i, layer in enumerate(spec.layers)))


def add_sliding_window(spec: ModelSpec, config: Config, usual: Callable[[int], bool]) -> ModelSpec:
    """The spec with sliding_window on the layers that layer_types names, or else `usual` ones."""
    if config.get("sliding_window") is None:
        return spec
    window = read_integer(config, "sliding_window", most=MOST_POSITIONS)
    kinds = read_layer_kinds(spec, config, usual)
    seen = [window if kind == "sliding_attention" else 0 for kind in kinds]
    return change_layers(spec, lambda i, x: replace(x, kv=replace(x.kv, window=seen[i])))


def read_layer_kinds(spec: ModelSpec, config: Config, usual: Callable[[int], bool]) -> list[str]:
    """sliding_attention or full_attention for every layer."""
    count = range(len(spec.layers))
    kinds = ["sliding_attention" if usual(i) else "full_attention" for i in count]
    return read_layer_choices(config, "layer_types", kinds)


@lru_cache(maxsize=8)  # the same for every expert, and long
def make_half_split_order(head: int, turned: int = 0) -> tuple[int, ...]:
    """Which row of an interleaved head goes where, so that element i pairs with i + turned/2; the
    first `turned` rows of a head turn, all of them by default.
    """
    turned = turned or head
    return (*range(0, turned, 2), *range(1, turned, 2), *range(turned, head))


def make_interleaved_order(spec: ModelSpec) -> tuple[int, ...]:
    """The `turn` of a family that is published with rotated pairs side by side."""
    return make_half_split_order(spec.layers[0].head, spec.ropes[0].dim)


def make_decoder_plan(
    spec: ModelSpec,
    names: TensorNames,
    files: Files,
    turn: tuple[int, ...] = (),
    plus: float = 0.0,
    blocks: "LayerBlocks | None" = None,
) -> WeightPlan:
    """The slots of a decoder.  `turn` is the order of the rows of q's and k's heads, `plus` is
    added to norms' weights; `blocks` makes the slots of blocks that are not the usual ones.
    """
    if names.base and files.names and not any(n.startswith(names.base) for n in files.names):
        names = names.drop_base()
    _judge_count(spec)
    plan = _Plan(spec, names, turn, plus)
    width = spec.narrow or spec.hidden
    slots = [plan.plan_table("embed", names.embed, (spec.vocab, width))]
    if spec.narrow:
        slots.append(plan_linear("project_in", width, ((names.widen, spec.hidden),)))
    if spec.positions:
        slots.append(plan.plan_table("positions", names.positions, (spec.positions, spec.hidden)))
    for i, layer in enumerate(spec.layers):
        at, src = f"layers.{i}.", f"{names.layer}{i}."
        attention = blocks.plan_attention if blocks and layer.latent else plan.plan_attention
        mlp = blocks.plan_mixture if blocks and layer.moe else plan.plan_mlp
        slots += [*plan.plan_norms(at, src), *attention(at, src, layer), *mlp(at, src, layer)]
    slots += plan.plan_norm("norm", names.norm)
    if spec.narrow:
        slots.append(plan_linear("project_out", spec.hidden, ((names.narrow, width),)))
    if not spec.tie:
        slots.append(plan_linear("head", width, ((names.head, spec.vocab),)))
    ignored = ("*rotary_emb.inv_freq", "rope_freqs.weight")
    return WeightPlan(tuple(slots), ignored + ((f"{names.head}.weight",) if spec.tie else ()))


def _judge_count(spec: ModelSpec) -> None:
    """A lying config must not size the plan."""
    experts = sum(layer.moe.route.experts for layer in spec.layers if layer.moe)
    heads = sum(layer.heads for layer in spec.layers if layer.latent)
    if experts + heads > MOST_BLOCKS:
        raise CheckpointError(
            f"config: {experts} experts and {heads} latent heads in {len(spec.layers)} layers; "
            f"at most {MOST_BLOCKS} together"
        )


class LayerBlocks(Protocol):
    """Slots of blocks that only some families have, given the slots' prefix, the tensors' prefix
    and the layer.
    """

    def plan_attention(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]: ...
    def plan_mixture(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]: ...


def plan_linear(
    name: str, columns: int, parts: tuple[tuple[str, int], ...], *, biased: bool = False,
    order: tuple[int, ...] = (),
) -> SlotPlan:  # fmt: skip
    """A matrix of whole tensors, (module, rows) each, side by side along N."""
    sources = tuple(
        Source(
            f"{module}.weight", (rows, columns), rows,
            order=order, bias=f"{module}.bias" if biased else "",
        )
        for module, rows in parts
    )  # fmt: skip
    return SlotPlan(name, (sum(rows for _, rows in parts), columns), sources)


def split(source: Source, rows: tuple[int, ...]) -> tuple[Source, ...]:
    """A fused matrix as consecutive parts of these numbers of rows."""
    starts = (sum(rows[:i]) for i in range(len(rows)))
    return tuple(replace(source, start=at, rows=n) for at, n in zip(starts, rows, strict=True))


def plan_vector(name: str, tensor: str, size: int, plus: float = 0.0) -> SlotPlan:
    return SlotPlan(name, (size,), (Source(tensor, (size,), size),), "vector", plus=plus)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the slots of one model have in common."""

    spec: ModelSpec
    names: TensorNames
    turn: tuple[int, ...]
    plus: float

    def plan_table(self, name: str, module: str, shape: tuple[int, int]) -> SlotPlan:
        slot = plan_linear(name, shape[1], ((module, shape[0]),))
        return replace(slot, kind="embed")

    def plan_norm(self, name: str, module: str) -> list[SlotPlan]:
        """A norm's weights, and its biases."""
        if not module:
            return []
        slots = [plan_vector(name, f"{module}.weight", self.spec.hidden, self.plus)]
        if self.spec.norm.bias:
            slots.append(plan_vector(f"{name}_bias", f"{module}.bias", self.spec.hidden))
        return slots

    def plan_norms(self, at: str, src: str) -> list[SlotPlan]:
        n = self.names
        places = {"attn_norm": n.attn_norm, "attn_post": n.attn_post}
        places |= {"mlp_norm": n.mlp_norm, "mlp_post": n.mlp_post}
        return [slot for k, m in places.items() if m for slot in self.plan_norm(at + k, src + m)]

    def plan_attention(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]:
        n, hidden = self.names, self.spec.hidden
        q, kv = layer.heads * layer.head, layer.kv.heads * layer.head
        parts = ((n.qkv[0], q + 2 * kv),)
        if len(n.qkv) == 3:
            parts = tuple(zip(n.qkv, (q, kv, kv), strict=True))  # type: ignore[assignment]
        full = tuple((src + module, rows) for module, rows in parts)
        qkv = plan_linear(at + "qkv", hidden, full, biased=layer.attn_bias)
        if self.turn:
            sources = qkv.sources if len(n.qkv) == 3 else split(qkv.sources[0], (q, kv, kv))
            turned = [replace(s, order=self.turn) for s in sources[:2]]
            qkv = replace(qkv, sources=(*turned, *sources[2:]))
        out = plan_linear(at + "out", q, ((src + n.out, hidden),), biased=layer.out_bias)
        slots = [qkv, out]
        if layer.qk_norm not in ("", "unit"):
            for name, module, size in (("q_norm", n.q_norm, q), ("k_norm", n.k_norm, kv)):
                wide = layer.head if layer.qk_norm == "head" else size
                slot = plan_vector(at + name, f"{src}{module}.weight", wide, self.plus)
                if layer.qk_norm == "centred":  # a row for each head
                    shape = (size // layer.head, layer.head)
                    rows = Source(slot.sources[0].tensor, shape, shape[0], order=self.turn)
                    slot = replace(slot, sources=(rows,))
                slots.append(slot)
        if layer.sinks:
            slots.append(plan_vector(at + "sinks", src + "self_attn.sinks", layer.heads))
        return slots

    def plan_mlp(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]:
        n, inner = self.names, layer.inner
        rows = 2 * inner if layer.gated and len(n.up) == 1 else inner
        up = tuple((src + module, rows) for module in n.up)
        down = ((src + n.down, self.spec.hidden),)
        return [
            plan_linear(at + "up", self.spec.hidden, up, biased=layer.mlp_bias),
            plan_linear(at + "down", inner, down, biased=layer.mlp_bias),
        ]
