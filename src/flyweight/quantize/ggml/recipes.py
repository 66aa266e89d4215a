"""Which type each tensor of a GGUF file gets: the recipes that llama.cpp's `llama-quantize` names.

Invariant: for the model families we read, the types are those that llama-quantize chooses (facts
from its llama-quant.cpp).  Knows names and shapes, no weights.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flyweight.errors import ConfigError, nearest
from flyweight.weights.formats import FORMATS

Layers = Callable[[int, int], bool]  # the layer, how many there are


@dataclass(frozen=True, slots=True)
class RecipeModel:
    """What recipes need to know about a model.  `queries` are the query heads of a K/V head;
    `experts` of a layer, 0 for none; `tied`: it has no output.weight; `weighed`: an importance
    matrix is given.
    """

    layers: int
    queries: int = 1
    experts: int = 0
    tied: bool = False
    weighed: bool = False


@dataclass(frozen=True, slots=True)
class RecipeRule:
    """`kind` in some of the layers, for models with at least this many queries a K/V head;
    `weighed` where it depends on an importance matrix being given, or not.
    """

    kind: str
    layers: Layers = lambda layer, count: True
    queries: int = 1
    weighed: bool | None = None

    def fits(self, layer: int, model: RecipeModel) -> bool:
        return (
            self.layers(layer, model.layers)
            and model.queries >= self.queries
            and self.weighed in (None, model.weighed)
        )


@dataclass(frozen=True, slots=True)
class TypeRecipe:
    """`number` is general.file_type; `base` the type of matrices for which no rule fits.  Rules by
    the tensors' parts, as `PARTS` groups them: the first that fits.
    """

    number: int
    base: str
    rules: Mapping[str, tuple[RecipeRule, ...]] = field(default_factory=dict)
    careful: bool = False  # attn_output of models with eight experts in Q5_K


def spread(layer: int, count: int) -> bool:
    """The first and the last eighth, and every third layer between."""
    first = count // 8
    return layer < first or layer >= 7 * count // 8 or (layer - first) % 3 == 2


def first(share: int) -> Layers:
    return lambda layer, count: layer < count // share


def below(limit: int) -> Layers:
    return lambda layer, count: layer < limit


def _all(kind: str) -> tuple[RecipeRule, ...]:
    return (RecipeRule(kind),)


_SPREAD = (RecipeRule("q6_k", spread),)
_IQ4 = {
    "attn_v": (RecipeRule("q5_k", queries=4),),
    "ffn_down": (RecipeRule("q5_k", first(8), weighed=False),),
}
RECIPES = {
    "F32": TypeRecipe(0, "f32"),
    "F16": TypeRecipe(1, "f16"),
    "BF16": TypeRecipe(32, "bf16"),
    "Q8_0": TypeRecipe(7, "q8_0"),
    "Q6_K": TypeRecipe(18, "q6_k"),
    "Q5_K_M": TypeRecipe(17, "q5_k", {"attn_v": _SPREAD, "ffn_down": _SPREAD}),
    "Q5_K_S": TypeRecipe(16, "q5_k"),
    "Q5_1": TypeRecipe(9, "q5_1"),
    "Q5_0": TypeRecipe(8, "q5_0", {"ffn_down": (RecipeRule("q5_1", first(8), weighed=True),)}),
    "Q4_K_M": TypeRecipe(15, "q4_k", {"attn_v": _SPREAD, "ffn_down": _SPREAD}, careful=True),
    "Q4_K_S": TypeRecipe(
        14,
        "q4_k",
        {"attn_v": (RecipeRule("q5_k", below(4)),), "ffn_down": (RecipeRule("q5_k", first(8)),)},
        careful=True,
    ),
    "IQ4_NL": TypeRecipe(25, "iq4_nl", _IQ4, careful=True),
    "IQ4_XS": TypeRecipe(30, "iq4_xs", _IQ4, careful=True),
    "Q4_1": TypeRecipe(3, "q4_1"),
    "Q4_0": TypeRecipe(2, "q4_0", {"ffn_down": (RecipeRule("q4_1", first(8), weighed=True),)}),
    "Q3_K_L": TypeRecipe(
        13, "q3_k", {"attn_v": _all("q5_k"), "ffn_down": _all("q5_k"), "attn_output": _all("q5_k")}
    ),
    "Q3_K_M": TypeRecipe(
        12,
        "q3_k",
        {
            "attn_v": (RecipeRule("q5_k", below(2)), RecipeRule("q4_k")),
            "ffn_down": (RecipeRule("q5_k", first(16)), RecipeRule("q4_k")),
            "attn_output": _all("q4_k"),
        },
        careful=True,
    ),
    "Q3_K_S": TypeRecipe(11, "q3_k", careful=True),
    "Q2_K": TypeRecipe(
        10,
        "q2_k",
        {
            "attn_v": (RecipeRule("q4_k", queries=4), RecipeRule("q3_k")),
            "ffn_down": _all("q3_k"),
            "attn_output": _all("q3_k"),
        },
        careful=True,
    ),
}
NAMES = {recipe.number: name for name, recipe in RECIPES.items()}
# Parts of a layer that rules distinguish, and those they treat alike.
PARTS = {
    "attn_v": "attn_v",
    "attn_qkv": "attn_v",
    "attn_kv_b": "attn_v",
    "attn_k": "attn_k",
    "attn_output": "attn_output",
    "ffn_down": "ffn_down",
    "ffn_down_exps": "ffn_down",
    "ffn_down_shexp": "ffn_down",
}
KEPT = ("ffn_gate_inp", "position_embd", "token_types")  # small, and stay as they are
# What takes the place of a type whose blocks of 256 do not fill a row.
NARROW = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "iq4_xs": "iq4_nl",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
LARGE = 80  # layers of the 70B models, whose values are quantised less
BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def find_recipe(name: str) -> TypeRecipe:
    """By the name llama-quantize has for it, in any case.  Raises `ConfigError`."""
    known = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M"}  # as llama-quantize has them
    upper = known.get(name.upper(), name.upper())
    if upper not in RECIPES:
        allowed = ", ".join(RECIPES)
        raise ConfigError(
            "is not valid", "type", value=name, allowed=f"{allowed}{nearest(upper, RECIPES)}"
        )
    return RECIPES[upper]


def choose_kind(recipe: TypeRecipe, name: str, shape: tuple[int, ...], model: RecipeModel) -> str:
    """The type of a tensor by its GGUF name and shape [..., N, K]; "" for one that is not
    quantised and stays as it is: norms, biases, routers, positions.
    """
    stem = name.removesuffix(".weight").rpartition(".")[2]
    if len(shape) < 2 or not name.endswith(".weight") or stem.endswith("_norm") or stem in KEPT:
        return ""
    if recipe.base in ("f32", "f16", "bf16"):
        return recipe.base
    return fit_kind(_find_kind(recipe, name, shape[-1], model), shape[-1])


def fit_kind(kind: str, columns: int) -> str:
    """The type, or what takes its place in rows of this many columns."""
    if columns % FORMATS[kind].block:
        kind = NARROW.get(kind, kind)
    return kind if columns % FORMATS[kind].block == 0 else "f16"


def _find_kind(recipe: TypeRecipe, name: str, columns: int, model: RecipeModel) -> str:
    if name == "output.weight" or (name == "token_embd.weight" and model.tied):
        whole = columns % FORMATS[recipe.base].block == 0
        return "q6_k" if whole and recipe.base != "q8_0" else "q8_0"
    found = BLOCK.fullmatch(name)
    part = PARTS.get(found[2], "") if found else ""
    if found is None or not part:
        return recipe.base
    if model.experts == 8 and part in ("attn_v", "attn_k"):
        return "q8_0"
    if model.experts == 8 and part == "attn_output":
        return "q5_k" if recipe.careful else recipe.base
    rules = recipe.rules.get(part, ())
    layer = int(found[1])
    kind = next((rule.kind for rule in rules if rule.fits(layer, model)), recipe.base)
    large = model.layers == LARGE and model.queries > 1 and part == "attn_v"
    return "q5_k" if large and kind in ("q3_k", "q4_k") else kind
