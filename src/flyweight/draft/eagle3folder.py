"""EAGLE-3's checkpoint (SafeAILab's files, SpecForge's and speculators'; vLLM reads the same):

- `fc` [H,nH], for n tapped layers;
- below `midlayer.` or `layers.0.`, a decoder layer whose q, k and v are [.,2H], with
  `input_layernorm` for the embedding and `hidden_norm` for the state;
- for some, `fc_norm.0` and so on, of each tapped state, or `input_norm`, of all side by side;
- `norm`, and `lm_head` [D,H]; row i of it is the target's token i + `d2t`[i]; without `lm_head` the
  target's is used, and so is its embedding without `embed_tokens`.

Layers are numbered in two ways.  An id in `eagle_aux_hidden_state_layer_ids`, as vLLM has it, is of
the layer that the state goes into; one below `eagle_config`, as SGLang has it, of the layer that it
comes from.  Without either, states go into layers 2, L/2 and L-3.

Invariant: everything is checked against the model before a matrix is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flyweight.draft.eaglefolder import (
    MLP_NORM,
    list_layer_matrices,
    name_all,
    pack_layer,
    pack_matrix,
    read_layer_spec,
)
from flyweight.draft.headfolder import CONFIG, HeadFolder, find_heads
from flyweight.draft.methods import DraftBase
from flyweight.draft.slotstates import describe_slots
from flyweight.draft.treegrowth import count_scratch
from flyweight.draft.treerules import TreeRule, make_rule
from flyweight.errors import CheckpointError, ConfigError
from flyweight.models.config import Config, read_flag, read_integer, refuse
from flyweight.models.decoder import Decoder
from flyweight.models.linear import Parts
from flyweight.spec import ModelSpec, StoredSlots
from flyweight.speculation import SpeculationConfig
from flyweight.validation.untrusted import shown
from flyweight.wire import I32

IDS = "eagle_aux_hidden_state_layer_ids"
NESTED = "transformer_layer_config"  # speculators' name for what others have at the top
MOST_TAPS = 16
FC, HEAD, EMBED = "fc.weight", "lm_head.weight", "embed_tokens.weight"
TAPS_NORM = "taps_norm"  # its slot
TO_TARGET, TO_DRAFT = "d2t", "t2d"


@dataclass(frozen=True, slots=True)
class Eagle3Layout:
    """The layers it reads, which of the target's `ids` its output rows are (None: all, in order),
    whether the residual begins with the normed state, and whether it ends with one.
    """

    taps: tuple[int, ...]
    ids: I32 | None = None
    normed_residual: bool = False
    normed_output: bool = False


@dataclass(frozen=True, slots=True)
class Eagle3Source:
    """Opened files; `spec` is the layer as a model of one, its tensors are below `at`.  Drafts are
    chains, or trees by a `rule` that take `scratch` blocks of K/V.
    """

    folder: HeadFolder
    spec: ModelSpec
    at: str
    layout: Eagle3Layout
    rule: TreeRule | None = None
    scratch: int = 0

    @property
    def name(self) -> str:
        return "EAGLE-3 layer"

    @property
    def kinds(self) -> Mapping[str, Sequence[tuple[tuple[int, ...], str]]]:
        names = [*name_all(list_matrices(self)), *list_vectors(self), EMBED]
        return self.folder.list_kinds(names)

    @property
    def stored(self) -> StoredSlots:
        return describe_slots(self.spec, self.scratch)


def open_source(config: SpeculationConfig, base: DraftBase) -> Eagle3Source:
    """Raises `ConfigError` or `CheckpointError`."""
    rule = make_rule(config)
    folder = HeadFolder(find_heads(config.options["model"]))
    try:
        folder.config = read_config(folder)
        folder.check_method("eagle3")
        folder.check_base(base.spec, base.fingerprint, base.name)
        found = _read_source(folder, base.spec)
        return replace(found, rule=rule, scratch=count_scratch(rule, base.block_size))
    except (CheckpointError, ConfigError):
        folder.close()
        raise


def read_config(folder: HeadFolder) -> Config:
    """config.json with what speculators nest in it."""
    nested = folder.config.get(NESTED) or {}
    if not isinstance(nested, dict):
        raise CheckpointError(f"{folder.path / CONFIG}: {NESTED} = {shown(nested)} is no object")
    return {**folder.config, **nested}


def _read_source(folder: HeadFolder, base: ModelSpec) -> Eagle3Source:
    """Checks every tensor."""
    config = folder.config
    refuse(config, "parallel_drafting", False)
    taps = read_taps(folder, base)
    spec = read_layer_spec(folder, config, base)
    at = "midlayer." if any(x.startswith("midlayer.") for x in folder.shapes) else "layers.0."
    normed = read_flag(config, "norm_before_residual"), read_flag(config, "norm_output")
    source = Eagle3Source(folder, spec, at, Eagle3Layout(taps, read_ids(folder, base), *normed))
    matrices, vectors = list_matrices(source), list_vectors(source)
    for name, shape in matrices.items():
        folder.check_matrix(name, shape)
    for name, slot in vectors.items():
        folder.check_shape(name, (spec.hidden * (len(taps) if slot == TAPS_NORM else 1),))
    if EMBED in folder.shapes:
        folder.check_shape(EMBED, (base.vocab, base.hidden))
    unused = TO_TARGET, TO_DRAFT, f"{at}self_attn.rotary_emb.inv_freq"
    folder.check_tensors([*name_all(matrices), *vectors, EMBED], unused, "an EAGLE-3 layer's")
    return source


def read_taps(folder: HeadFolder, base: ModelSpec) -> tuple[int, ...]:
    """The layers whose states are read, in order.  Raises `CheckpointError`."""
    layers, where = len(base.layers), folder.path / CONFIG
    if base.norm.post:
        raise CheckpointError(
            f"{folder.path}: EAGLE-3 reads states between layers; {base.family} norms them there"
        )
    own = folder.config.get("eagle_config") or {}
    if not isinstance(own, dict):
        raise CheckpointError(f"{where}: eagle_config = {shown(own)} is no object")
    refuse(own, "use_aux_hidden_state", True)
    said, first = folder.config.get(IDS), 1
    if not said and own.get(IDS):
        said, first = own[IDS], 0
    if not said and len({2, layers // 2, layers - 3}) < 3:
        raise CheckpointError(
            f"{where}: {IDS} is missing; a model of {layers} layers has no usual ones"
        )
    said = said or [2, layers // 2, layers - 3]
    last = layers - 1 + first
    whole = isinstance(said, list) and 0 < len(said) <= MOST_TAPS
    if not whole or not all(type(i) is int and first <= i <= last for i in said):
        raise CheckpointError(
            f"{where}: {IDS} = {shown(said)}; a list of whole numbers from {first} to {last} is "
            f"needed, for {layers} layers"
        )
    if len(set(said)) < len(said):
        raise CheckpointError(f"{where}: {IDS} = {shown(said)} names a layer twice")
    return tuple(sorted(i - first for i in said))


def read_ids(folder: HeadFolder, base: ModelSpec) -> I32 | None:
    """The target's token of each row of the output matrix.  Raises `CheckpointError`."""
    known = read_integer(folder.config, "draft_vocab_size", base.vocab)
    if TO_TARGET not in folder.shapes:
        if known != base.vocab:
            raise CheckpointError(
                f"{folder.path}: draft_vocab_size = {known}, this model has {base.vocab}, and no "
                f"tensor {shown(TO_TARGET)} says which tokens are meant"
            )
        return None
    folder.check_shape(TO_TARGET, (known,))
    ids = np.arange(known) + folder.read_integers(TO_TARGET)
    wrong = np.flatnonzero((ids < 0) | (ids >= base.vocab))
    if len(wrong):
        i = int(wrong[0])
        raise CheckpointError(
            f"{folder.path}: {TO_TARGET}[{i}] makes token {i} {ids[i]}; allowed: 0 to "
            f"{base.vocab - 1}"
        )
    if len(np.unique(ids)) < known:
        raise CheckpointError(f"{folder.path}: {TO_TARGET} maps two tokens to the same one")
    return ids.astype(np.int32)


def list_matrices(source: Eagle3Source) -> dict[str, tuple[int, int]]:
    """The matrices that must be there."""
    spec, layout = source.spec, source.layout
    found = {FC: (spec.hidden, len(layout.taps) * spec.hidden)}
    found |= list_layer_matrices(spec, source.at, 2)
    if HEAD in source.folder.shapes or layout.ids is not None:
        rows = spec.vocab if layout.ids is None else len(layout.ids)
        found[HEAD] = rows, spec.hidden
    return found


def list_vectors(source: Eagle3Source) -> dict[str, str]:
    """The norms, and their slots."""
    at, config = source.at, source.folder.config
    found = {
        f"{at}input_layernorm.weight": "embed_norm",
        f"{at}hidden_norm.weight": "state_norm",
        f"{at}post_attention_layernorm.weight": MLP_NORM,
        "norm.weight": "norm",
    }
    if read_flag(config, "norm_before_fc"):
        found["input_norm.weight"] = TAPS_NORM
    if read_flag(config, "fc_norm"):
        taps = range(len(source.layout.taps))
        found |= {f"fc_norm.{i}.weight": f"tap_norm.{i}" for i in taps}
    return found


def load_eagle3(source: Eagle3Source, target: Decoder) -> Parts:
    """The weights by slot; closes the folder."""
    folder, ops = source.folder, target.ops
    try:
        weights: dict[str, Any] = pack_layer(folder, source.at, ops)
        for name, slot in list_vectors(source).items():
            weights[slot] = folder.read_vector(name)
        weights["fc"] = pack_matrix(folder, ["fc"], ops)
        if HEAD in folder.shapes:
            weights["head"] = pack_matrix(folder, ["lm_head"], ops)
        if EMBED in folder.shapes:
            table = folder.read(EMBED)
            weights["embed"] = ops.pack(table.shape, [table])
    finally:
        folder.close()
    return Parts(ops, target.comm, source.spec, weights)
