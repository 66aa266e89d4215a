"""Recipes choose the types that llama-quantize chose for the same models."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight.errors import ConfigError
from flyweight.quantize.ggml.recipes import (
    RECIPES,
    RecipeModel,
    choose_kind,
    find_recipe,
    fit_kind,
)
from flyweight.weights.hub.names import PREFERENCE

CHOSEN = json.loads((Path(__file__).parents[2] / "data" / "llama_cpp" / "recipes.json").read_text())
# layers, query heads a K/V head, experts, tied, columns, columns of ffn_down
MODELS = {
    "plain": (RecipeModel(24), 256, 256),
    "grouped": (RecipeModel(21, queries=4, tied=True), 256, 256),
    "experts": (RecipeModel(9, queries=4, experts=8), 256, 256),
    "experts4": (RecipeModel(9, experts=4), 256, 256),
    "large": (RecipeModel(80, queries=2), 256, 256),
    "narrow": (RecipeModel(4, queries=2), 96, 160),
    "odd": (RecipeModel(2), 40, 80),
}


def spell_out(part: str, runs: str) -> Iterator[tuple[str, str]]:
    """Tensors' names and types of a part: "q6_k*2 q4_k*1" are three layers."""
    kinds = [kind for run in runs.split() for kind in [run.split("*")[0]] * int(run.split("*")[1])]
    if part in ("output", "token_embd"):
        yield f"{part}.weight", kinds[0]
        return
    for i, kind in enumerate(kinds):
        yield f"blk.{i}.{part}.weight", kind


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_as_llama_quantize(name: str, weighed: bool) -> None:
    model, columns, inner = MODELS[name]
    model = RecipeModel(model.layers, model.queries, model.experts, model.tied, weighed)
    compared = 0
    for recipe in RECIPES:
        if recipe in ("F32", "F16", "BF16"):
            continue
        rows = CHOSEN[name].get(f"{recipe}+" if weighed else recipe) or CHOSEN[name][recipe]
        for part, runs in rows.items():
            shape = (4, inner if "ffn_down" in part else columns)
            for tensor, kind in spell_out(part, runs):
                found = choose_kind(find_recipe(recipe), tensor, shape, model)
                kept = "f32" if part == "ffn_gate_inp" else "f16"  # what the model has
                assert (found or kept) == kind, (recipe, tensor)
                compared += 1
    assert compared > 17 * 2 * model.layers


def test_what_is_not_quantised() -> None:
    model = RecipeModel(2)
    for recipe in RECIPES.values():
        for name, shape in (
            ("blk.0.attn_norm.weight", (256,)),
            ("blk.0.attn_q.bias", (256,)),
            ("blk.0.attn_q_norm.weight", (4, 256)),
            ("blk.0.ffn_gate_inp.weight", (8, 256)),
            ("position_embd.weight", (64, 256)),
            ("rope_freqs.weight", (32,)),
        ):
            assert choose_kind(recipe, name, shape, model) == ""
    for dense in ("F32", "F16", "BF16"):
        assert choose_kind(RECIPES[dense], "output.weight", (4, 7), model) == dense.lower()
    assert fit_kind("q4_k", 32) == "q5_0" and fit_kind("q4_0", 40) == "f16"


def test_names() -> None:
    assert find_recipe("q4_k_m") is RECIPES["Q4_K_M"] is find_recipe("Q4_K")
    assert set(RECIPES) == set(PREFERENCE) - {"MXFP4"}
    with pytest.raises(ConfigError, match=r"type = 'Q4_K_X' is not valid; allowed: .*Q4_K_"):
        find_recipe("Q4_K_X")
