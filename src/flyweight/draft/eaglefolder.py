"""EAGLE's checkpoint: fc [H,2H] and one decoder layer without a norm before attention, which shares
the model's embedding and output matrix (SafeAILab's files; vLLM reads the same).  EAGLE-3's layer
is read with the same functions.

Invariant: everything is checked against the model before a tensor is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flyweight.draft.headfolder import HeadFolder, find_heads, name_bias
from flyweight.draft.methods import DraftBase
from flyweight.draft.slotstates import describe_slots
from flyweight.draft.treegrowth import count_scratch
from flyweight.draft.treerules import TreeRule, make_rule
from flyweight.errors import CheckpointError, ConfigError
from flyweight.models.config import Config
from flyweight.models.decoder import Decoder
from flyweight.models.linear import Parts
from flyweight.models.plans import make_gated_spec
from flyweight.ops.base import Ops
from flyweight.ops.operands import Weights
from flyweight.spec import ModelSpec, StoredSlots
from flyweight.speculation import SpeculationConfig

AT = "layers.0."
NORM = f"{AT}post_attention_layernorm.weight"
MLP_NORM = "layers.0.mlp_norm"  # its slot
UNUSED = ("embed_tokens.weight", "lm_head.weight", f"{AT}self_attn.rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True)
class EagleSource:
    """Opened files; `spec` is the layer as a model of one.  Drafts are chains, or trees by a `rule`
    that take `scratch` blocks of K/V.
    """

    folder: HeadFolder
    spec: ModelSpec
    rule: TreeRule | None = None
    scratch: int = 0

    @property
    def name(self) -> str:
        return "EAGLE layer"

    @property
    def kinds(self) -> Mapping[str, Sequence[tuple[tuple[int, ...], str]]]:
        return self.folder.list_kinds([*name_all(list_matrices(self.spec)), NORM])

    @property
    def stored(self) -> StoredSlots:
        return describe_slots(self.spec, self.scratch)


def open_source(config: SpeculationConfig, base: DraftBase) -> EagleSource:
    """Raises `ConfigError` or `CheckpointError`."""
    rule = make_rule(config)
    folder = HeadFolder(find_heads(config.options["model"]))
    try:
        folder.check_method("eagle")
        folder.check_base(base.spec, base.fingerprint, base.name)
        scratch = count_scratch(rule, base.block_size)
        return EagleSource(folder, read_layer(folder, base.spec), rule, scratch)
    except (CheckpointError, ConfigError):
        folder.close()
        raise


def read_layer(folder: HeadFolder, base: ModelSpec) -> ModelSpec:
    """The layer's spec, with every tensor checked."""
    folder.check_shape("fc.weight", (base.hidden, 2 * base.hidden))  # other heads have none
    spec = read_layer_spec(folder, folder.config, base)
    matrices = list_matrices(spec)
    for name, shape in matrices.items():
        folder.check_matrix(name, shape)
    folder.check_shape(NORM, (spec.hidden,))
    folder.check_tensors([*name_all(matrices), NORM], UNUSED, "an EAGLE layer's")
    return spec


def read_layer_spec(folder: HeadFolder, config: Config, base: ModelSpec) -> ModelSpec:
    """A Llama layer as a model of one."""
    usual = {"num_hidden_layers": 1, "vocab_size": base.vocab}
    spec = make_gated_spec({**usual, **config, "max_position_embeddings": base.context}, "eagle")
    if len(spec.layers) != 1 or spec.hidden != base.hidden:
        raise CheckpointError(
            f"{folder.path}: {len(spec.layers)} layers of {spec.hidden} elements; "
            f"1 layer of {base.hidden} expected"
        )
    bare = replace(spec.layers[0], attn_bias=False, mlp_bias=False)  # packed with the matrices
    return replace(spec, layers=(bare,))


def list_matrices(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """The matrices that must be there."""
    return {"fc.weight": (spec.hidden, 2 * spec.hidden)} | list_layer_matrices(spec, AT, 1)


def list_layer_matrices(spec: ModelSpec, at: str, parts: int) -> dict[str, tuple[int, int]]:
    """Those of a layer below `at`, whose attention reads `parts` rows [H] side by side."""
    layer, hidden = spec.layers[0], spec.hidden
    q, kv, wide = layer.heads * layer.head, layer.kv.heads * layer.head, parts * hidden
    attention = {"q": (q, wide), "k": (kv, wide), "v": (kv, wide), "o": (hidden, q)}
    mlp = {"gate": (layer.inner, hidden), "up": (layer.inner, hidden)}
    mlp["down"] = hidden, layer.inner
    found = {f"{at}self_attn.{name}_proj.weight": shape for name, shape in attention.items()}
    return found | {f"{at}mlp.{name}_proj.weight": shape for name, shape in mlp.items()}


def name_all(matrices: Iterable[str]) -> list[str]:
    """The tensors of matrices: they, and biases."""
    return [name for one in matrices for name in (one, name_bias(one))]


def load_eagle(source: EagleSource, target: Decoder) -> tuple[Weights, Parts]:
    """fc, and the layer's weights by slot; closes the folder."""
    folder = source.folder
    try:
        weights = {**pack_layer(folder, AT, target.ops), MLP_NORM: folder.read_vector(NORM)}
        fc = pack_matrix(folder, ["fc"], target.ops)
    finally:
        folder.close()
    return fc, Parts(target.ops, target.comm, source.spec, weights)


def pack_layer(folder: HeadFolder, at: str, ops: Ops) -> dict[str, Any]:
    """The matrices of a layer below `at`, by slot."""
    slots = {
        "qkv": [f"self_attn.{name}_proj" for name in "qkv"],
        "out": ["self_attn.o_proj"],
        "up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
    }
    return {
        f"layers.0.{slot}": pack_matrix(folder, [at + name for name in names], ops)
        for slot, names in slots.items()
    }


def pack_matrix(folder: HeadFolder, modules: Sequence[str], ops: Ops) -> Weights:
    """Matrices one after the other along N, with their biases."""
    parts = [folder.read(f"{module}.weight") for module in modules]
    biases = [
        folder.read_vector(f"{module}.bias")
        if f"{module}.bias" in folder.shapes
        else np.zeros(len(part), np.float32)
        for module, part in zip(modules, parts, strict=True)
    ]
    bias = np.concatenate(biases)
    shape = len(bias), parts[0].shape[1]
    return ops.pack(shape, parts, bias if bias.any() else None)
