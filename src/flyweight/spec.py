"""What a model is, as data: enough to size its memory and check its files before a tensor is read.

Invariant: a spec holds shapes and kinds, never weights; two models with equal specs need equal
memory.  Standard library only.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class KVType:
    """What K/V memory can hold: `bits` of an element.  `coded` types hold codes, with a float32
    scale for each position and head of K and of V, and pad K and V to whole units of `k_unit` and
    `v_unit` elements.  `also` are other spellings, vLLM's among them.
    """

    name: str
    bits: int
    also: tuple[str, ...] = ()
    coded: bool = False
    k_unit: int = 1
    v_unit: int = 1

    @property
    def meaning(self) -> str:
        """What K/V is kept in, in words."""
        if self.coded:
            return f"codes of {self.bits} bits, a scale for each token and head"
        return f"floats of {self.bits} bits"

    def count_bytes(self, group: "KVGroup") -> int:
        """Bytes of one position in a layer."""
        k, v = group.k_dim, 0 if group.v_in_k else group.v_dim
        scales = 4 * self.coded * (2 if v else 1)
        padded = -(-k // self.k_unit) * self.k_unit + -(-v // self.v_unit) * self.v_unit
        return group.heads * (padded * self.bits // 8 + scales)


# In the order of the native kernels' KVType.
KV_TYPES = {
    kind.name: kind
    for kind in (
        KVType("f16", 16, ("float16", "half")),
        KVType("bf16", 16, ("bfloat16",)),
        KVType("f32", 32, ("float32", "float")),
        KVType("int8", 8, (), True, 4, 16),
        KVType("int4", 4, (), True, 8, 64),
        KVType("fp8_e4m3", 8, ("fp8",), True, 4, 16),
        KVType("fp8_e5m2", 8, (), True, 4, 16),
    )
}
KV_NAMES = (*KV_TYPES, *(also for kind in KV_TYPES.values() for also in kind.also))
KV_BLOCK = 16  # positions that codes are stored in; it divides the block size


def read_kv_type(text: str) -> str:
    """The name of a type, given any of its spellings; other texts stay as they are."""
    spelled = {also: kind.name for kind in KV_TYPES.values() for also in kind.also}
    return spelled.get(text, text)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al., 2021).  `dim` rotated elements of a head; `scaling` is
    the checkpoint's rope_scaling as sorted (key, value or list of values) pairs, `kind` its type
    ("default", "linear", "llama3", ...); cos and sin are multiplied by `factor`.
    """

    dim: int
    base: float
    kind: str = "default"
    scaling: tuple[tuple[str, float | tuple[float, ...]], ...] = ()
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class KVGroup:
    """How a layer remembers: `full` keeps every position.  Dimensions are per KV head.  With
    `v_in_k` nothing is stored for V: it is the last v_dim elements of K (MLA's cached latents).
    A token sees the last `window` positions, and none before its own chunk of `chunk` positions;
    0 is no limit.
    """

    heads: int
    k_dim: int
    v_dim: int
    kind: str = "full"
    window: int = 0
    v_in_k: bool = False
    chunk: int = 0

    @property
    def width(self) -> int:
        """Elements stored for one position."""
        return self.heads * (self.k_dim + (0 if self.v_in_k else self.v_dim))


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """How router logits choose experts: `scoring` "softmax" (over all experts), "chosen" (softmax
    over the chosen ones only) or "sigmoid"; `top` experts a token, their weights divided by their
    sum if `normalise`, then multiplied by `scale`.  With `groups` experts form equal groups and
    only the best `kept` groups, by the sum of their `judges` best experts, take part; `corrected`
    adds a bias of each expert to the scores that choose, not to the weights (DeepSeek-V3).
    """

    experts: int
    top: int
    scoring: str = "softmax"
    normalise: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    judges: int = 1
    corrected: bool = False


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture in place of an MLP: experts of `inner` elements, chosen as `route` says, and a
    shared expert of `shared` elements, 0 for none, behind a gate of its own where `shared_gate`;
    router and experts are biased where `bias`.  An expert's weight multiplies what it says or,
    where `before`, what it is given (Llama 4).  `held` are the first and the number of the experts
    that a rank has, None for all.
    """

    route: RouteSpec
    inner: int
    shared: int = 0
    shared_gate: bool = False
    bias: bool = False
    before: bool = False
    held: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2): K and V of a position are one latent of `rank`
    elements and `rope` rotated ones; a head's query has `plain` elements besides the rotated ones
    and its value `value`.  Queries pass through `q_rank` elements, 0 for none.  The norms of both
    latents have an `eps` of their own, which no config says (transformers' default).
    """

    rank: int
    rope: int
    plain: int
    value: int
    q_rank: int = 0
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class TemperSpec:
    """Queries of position p are multiplied by 1 + scale * ln(1 + floor((p + 1) / every)), which
    keeps attention sharp over long contexts (Llama 4, layers without positions).
    """

    every: int
    scale: float


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: `heads` query heads of `head` elements over `kv`, an MLP of `inner`
    elements.

    `qk_norm` is "", "head" (RMS, every head with the same weights), "unit" (the same without
    weights), "whole" (RMS, all heads as one vector) or "centred" (LayerNorm without biases, every
    head with weights of its own); `rope` the
    index of its rotation in `ModelSpec.ropes`, None without positions; `scale` what scores are
    multiplied by, 0 for head**-0.5; `gated` MLPs have a gate next to the up projection.
    """

    heads: int
    head: int
    kv: KVGroup
    inner: int
    act: str = "silu"
    gated: bool = True
    qk_norm: str = ""
    attn_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    rope: int | None = 0
    scale: float = 0.0
    softcap: float = 0.0
    sinks: bool = False
    temper: TemperSpec | None = None
    moe: MoeSpec | None = None
    latent: LatentSpec | None = None


@dataclass(frozen=True, slots=True)
class NormSpec:
    """How a family norms: `kind` "rms" or "layer" (LayerNorm, with biases where `bias`).  A `post`
    norm replaces the residual, after each block is added to it (Vaswani et al., 2017).
    """

    eps: float
    kind: str = "rms"
    bias: bool = False
    post: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole decoder.  `context` is the length it was made for, in tokens.

    `positions` learned position rows (0: none) are added to the embedding, which is multiplied by
    `embed_scale`; what a block adds to the residual by `residual_scale`; logits by `logit_scale`,
    then capped at `logit_softcap` (0: not).  `parallel` layers compute attention and MLP from the
    same residual.  Embedding and head have `narrow` columns, 0 for `hidden`; projections lead from
    one width to the other.
    """

    family: str
    hidden: int
    vocab: int
    context: int
    norm: NormSpec
    ropes: tuple[RopeSpec, ...]
    layers: tuple[LayerSpec, ...]
    tie: bool = False
    positions: int = 0
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    parallel: bool = False
    narrow: int = 0


class StoredSlots(NamedTuple):
    """What a drafter stores for each position of the target's blocks: K/V of these layers, of the
    backend's own type, and `nbytes` more.  It has K/V of `scratch` further blocks, and `waiting`
    bytes of a step's arrays that it has not stored yet.
    """

    spec: ModelSpec
    nbytes: int
    scratch: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """`rows` rows of a checkpoint tensor of `shape`, from `start` on, leading axes counted as rows.

    `order` says which row of every len(order) rows comes where (GGUF's llama keeps heads in the
    interleaved rope order); a vector's elements count as rows; `transposed` takes the rows' columns
    for rows (GPT-2's matrices), or the (first, number) of them that `outputs` names; `bias` names
    the tensor whose elements start..start+rows belong to them, "" for none.
    """

    tensor: str
    shape: tuple[int, ...]
    rows: int
    start: int = 0
    order: tuple[int, ...] = ()
    transposed: bool = False
    bias: str = ""
    outputs: tuple[int, int] | None = None

    @property
    def out(self) -> int:
        """Rows it brings to its slot."""
        if self.outputs is not None:
            return self.outputs[1]
        return self.shape[-1] if self.transposed else self.rows

    @property
    def bias_shape(self) -> tuple[int, ...]:
        return (*self.shape[:-2], self.shape[-1]) if self.transposed else self.shape[:-1]


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """One weight slot of the model: its name, its shape [N, K] (or [H] for a vector) and what fills
    it, concatenated along N in this order.  `kind` is "linear", "embed" or "vector"; `plus` is
    added to a vector (Gemma's norms).  Of a matrix that ranks share along K, the slot holds K
    columns of its sources, from `column` on.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    kind: str = "linear"
    plus: float = 0.0
    column: int = 0


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Every slot of a model, in loading order; `ignored` are tensor names (or patterns with '*')
    known to be unused.
    """

    slots: tuple[SlotPlan, ...]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Files:
    """What a weight plan must know of a checkpoint: whether its tensors are as GGUF's converters
    leave them, or as published, and their names, where one model was published in two ways.
    `joined` are the matrices of several tensors, whose rows are outputs in every family.
    """

    converted: bool = False
    names: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
