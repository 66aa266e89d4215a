"""EAGLE's checkpoint: fc [H,2H] and one decoder layer without a norm before attention, which shares
the model's embedding and output matrix (SafeAILab's files; vLLM reads the same).

Invariant: everything is checked against the model before a tensor is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flyweight.draft.headfolder import HeadFolder, find_heads, name_bias
from flyweight.draft.methods import DraftBase
from flyweight.errors import CheckpointError
from flyweight.models.decoder import Decoder
from flyweight.models.linear import Parts
from flyweight.models.plans import make_gated_spec
from flyweight.ops.operands import Weights
from flyweight.spec import LayerSpec, ModelSpec
from flyweight.speculation import SpeculationConfig

AT = "layers.0."
NORM = f"{AT}post_attention_layernorm.weight"
UNUSED = ("embed_tokens.weight", "lm_head.weight", f"{AT}self_attn.rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True)
class EagleSource:
    """Opened files; `spec` is the layer as a model of one."""

    folder: HeadFolder
    spec: ModelSpec

    @property
    def kinds(self) -> Mapping[str, Sequence[tuple[tuple[int, ...], str]]]:
        return self.folder.list_kinds(list_names(self.spec))

    @property
    def stored(self) -> tuple[ModelSpec, int]:
        """The layer, and the bytes of a state of 32 bits and its position."""
        return self.spec, 4 * self.spec.hidden + 4


def open_source(config: SpeculationConfig, base: DraftBase) -> EagleSource:
    """Raises `ConfigError` or `CheckpointError`."""
    folder = HeadFolder(find_heads(config.options["model"]))
    try:
        folder.check_base(base.spec, base.fingerprint)
        return EagleSource(folder, read_layer(folder, base.spec))
    except CheckpointError:
        folder.close()
        raise


def read_layer(folder: HeadFolder, base: ModelSpec) -> ModelSpec:
    """The layer's spec, with every tensor checked."""
    folder.check_shape("fc.weight", (base.hidden, 2 * base.hidden))  # other heads have none
    config = {"num_hidden_layers": 1, "vocab_size": base.vocab, **folder.config}
    spec = make_gated_spec({**config, "max_position_embeddings": base.context}, "eagle")
    if len(spec.layers) != 1 or spec.hidden != base.hidden:
        raise CheckpointError(
            f"{folder.path}: {len(spec.layers)} layers of {spec.hidden} elements; "
            f"1 layer of {base.hidden} expected"
        )
    for name, shape in list_shapes(spec).items():
        if name == NORM:
            folder.check_shape(name, shape)
        else:
            folder.check_matrix(name, (shape[0], shape[1]))
    folder.check_tensors(list_names(spec), UNUSED, "an EAGLE layer's")
    return spec


def list_names(spec: ModelSpec) -> set[str]:
    """The tensors that are loaded: those that must be there, and biases."""
    shapes = list_shapes(spec)
    return {*shapes, *(name_bias(name) for name in shapes if name != NORM)}


def list_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The tensors that must be there."""
    layer, hidden = spec.layers[0], spec.hidden
    q, kv = layer.heads * layer.head, layer.kv.heads * layer.head
    attention = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
    mlp = dict.fromkeys(("gate", "up"), (layer.inner, hidden)) | {"down": (hidden, layer.inner)}
    found: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, 2 * hidden), NORM: (hidden,)}
    found |= {f"{AT}self_attn.{name}_proj.weight": shape for name, shape in attention.items()}
    return found | {f"{AT}mlp.{name}_proj.weight": shape for name, shape in mlp.items()}


def load_eagle(source: EagleSource, target: Decoder) -> tuple[Weights, Parts]:
    """fc, and the layer's weights by slot; closes the folder."""
    folder, layer = source.folder, source.spec.layers[0]
    try:
        weights: dict[str, Any] = {"layers.0.mlp_norm": folder.read_vector(NORM)}
        slots = {
            "qkv": [f"self_attn.{name}_proj" for name in "qkv"],
            "out": ["self_attn.o_proj"],
            "up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }
        for slot, names in slots.items():
            weights[f"layers.0.{slot}"] = _pack(folder, [AT + name for name in names], target)
        fc = _pack(folder, ["fc"], target)
    finally:
        folder.close()
    spec = replace(source.spec, layers=(_bare(layer),))
    return fc, Parts(target.ops, target.comm, spec, weights)


def _bare(layer: LayerSpec) -> LayerSpec:
    """Biases are in the packed matrices."""
    return replace(layer, attn_bias=False, mlp_bias=False)


def _pack(folder: HeadFolder, modules: Sequence[str], target: Decoder) -> Weights:
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
    return target.ops.pack(shape, parts, bias if bias.any() else None)
