"""Sets up a job that writes one GGUF file: metadata, tensors under GGUF's names, and their types.

Invariant: a GGUF input keeps all its metadata but what is no longer true of it; a folder gets the
metadata that our own reader takes back for the same model.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flyweight import __version__
from flyweight.describe import ModelDescription
from flyweight.quantize.assignment import Assigner
from flyweight.quantize.ggml.container import read_metadata
from flyweight.quantize.ggml.convert import (
    GgufModel,
    convert_model,
    describe_for_recipes,
    list_shapes,
)
from flyweight.quantize.ggml.recipes import TypeRecipe, choose_kind
from flyweight.quantize.ggml.vocabulary import make_vocabulary
from flyweight.quantize.layer_types import LayerTypes
from flyweight.quantize.output.gguf import GgufLayout, GgufTarget, TypeChoice
from flyweight.quantize.precision import Precision
from flyweight.weights.gguf import read_gguf
from flyweight.weights.hub.names import name_checkpoint

UNTRUE = re.compile(r"quantize\.imatrix\..*|split\..*|flyweight\..*")  # keys of the input's file
VERSION = 2  # general.quantization_version
Types = Mapping[str, str]


def make_target(
    found: ModelDescription, recipe: TypeRecipe, weighed: bool, types: Types | None = None
) -> GgufTarget:
    """The file of a model with the types of a recipe, `types` over them by tensor; `weighed` where
    the importance of columns is known.  Raises `ConfigError` for a model that GGUF cannot hold.
    """
    model = convert_model(found.checkpoint.config, found.spec, found.plan)
    kinds = choose_types(model, recipe, weighed) | dict(types or {})
    choose = TypeChoice(kinds)
    assigner = Assigner(found.plan, model.plan, found.checkpoint, GgufLayout(), choose)
    usual = Precision(type=recipe.base)
    assignment = assigner.assign((usual,) * len(found.spec.layers))
    return GgufTarget(assignment, list_metadata(found, model, recipe), model.constants)


def list_layer_types(
    found: ModelDescription, recipe: TypeRecipe, named: LayerTypes
) -> dict[str, str]:
    """The types of the tensors that are named, without those that no recipe quantises.  Raises
    `ConfigError`.
    """
    model = convert_model(found.checkpoint.config, found.spec, found.plan)
    described = describe_for_recipes(model.spec, False)
    shapes = {
        name: shape
        for name, shape in list_shapes(model.plan).items()
        if choose_kind(recipe, name, shape, described)
    }
    return named.list_types(shapes, described.tied)


def choose_types(model: GgufModel, recipe: TypeRecipe, weighed: bool) -> dict[str, str]:
    """The type of every matrix."""
    described = describe_for_recipes(model.spec, weighed)
    return {
        name: choose_kind(recipe, name, shape, described) or "f32"
        for name, shape in list_shapes(model.plan).items()
    }


def list_metadata(
    found: ModelDescription, model: GgufModel, recipe: TypeRecipe
) -> dict[str, object]:
    """All metadata of the file."""
    source = found.checkpoint.tokenizer_source
    own = {
        "general.file_type": np.uint32(recipe.number),
        "general.quantization_version": np.uint32(VERSION),
    }
    if isinstance(source, Path):
        name = name_checkpoint(source.resolve()).rpartition("/")[2]
        made = {"general.name": name, "general.quantized_by": _name_program()}
        return {
            **model.metadata,
            **made,
            **make_vocabulary(source, found.tokenizer, found.spec.vocab),
            **own,
        }
    file = read_gguf(found.checkpoint.passport_path)  # of a split model the first part
    try:
        kept = {k: v for k, v in read_metadata(file).items() if not UNTRUE.fullmatch(k)}
    finally:
        file.file.close()
    return {**kept, **own}


def _name_program() -> str:
    return f"flyweight {__version__}"
