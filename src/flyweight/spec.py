"""What a model is, as data: enough to size its memory and check its files before a tensor is read.

Invariant: a spec holds shapes and kinds, never weights; two models with equal specs need equal
memory.  Standard library only.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al., 2021).  `dim` rotated elements of a head; `scaling` is
    the checkpoint's rope_scaling as sorted (key, value) pairs, `kind` its type ("default",
    "linear", "llama3", ...).
    """

    dim: int
    base: float
    kind: str = "default"
    scaling: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class KVGroup:
    """How a layer remembers: `full` keeps every position.  Dimensions are per KV head.  With
    `v_in_k` nothing is stored for V: it is the last v_dim elements of K (MLA's cached latents).
    """

    heads: int
    k_dim: int
    v_dim: int
    kind: str = "full"
    window: int = 0
    v_in_k: bool = False

    @property
    def width(self) -> int:
        """Elements stored for one position."""
        return self.heads * (self.k_dim + (0 if self.v_in_k else self.v_dim))


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """How router logits choose experts: `scoring` "softmax" (over all experts), "chosen" (softmax
    over the chosen ones only) or "sigmoid"; `top` experts a token, their weights divided by their
    sum if `normalise`, then multiplied by `scale`.  With `groups` experts lie in equal groups and
    only the best `kept` groups (by their best expert) take part.
    """

    experts: int
    top: int
    scoring: str = "softmax"
    normalise: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: `heads` query heads of `head` elements over `kv`, a gated MLP of `inner`
    elements.
    """

    heads: int
    head: int
    kv: KVGroup
    inner: int
    act: str = "silu"
    qk_norm: bool = False
    attn_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole decoder.  `context` is the length it was made for, in tokens; `eps` the norms'
    epsilon.
    """

    family: str
    hidden: int
    vocab: int
    context: int
    eps: float
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]
    tie: bool = False


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """One weight slot of the model: its name, its shape [N, K] (or [H] for a norm) and the
    checkpoint tensors that fill it, concatenated along N in this order.  `shard` is the axis tensor
    parallelism slices (0, 1 or None).  `kind` is "linear", "embed" or "vector"; `permute` counts
    the heads of each source whose rows arrive in the interleaved rope order and must be put in
    half-split order (GGUF's llama), 0 for none.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    rows: tuple[int, ...] = ()
    kind: str = "linear"
    shard: int | None = None
    permute: tuple[int, ...] = ()
    bias: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Every slot of a model, in loading order; `ignored` are tensor names (or prefixes ending in
    '*') known to be unused.
    """

    slots: tuple[SlotPlan, ...]
    ignored: tuple[str, ...] = ()
