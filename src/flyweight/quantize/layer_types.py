"""`--layer-precision` for a GGUF file: a type for the matrices of each layer that it names.

Invariant: a type that is named is written, or refused where its blocks do not fill the rows; other
tensors keep the types of the recipe.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from flyweight.errors import ConfigError, nearest
from flyweight.quantize.ggml.encode import ENCODABLE
from flyweight.quantize.ggml.recipes import BLOCK, fit_kind
from flyweight.quantize.precision import DENSE, NamedPrecision, Precision
from flyweight.weights.formats import FORMATS

WORDS = {**DENSE, "int8": "q8_0"}  # of other formats
NEAREST = {"int4": "q4_0", "int3": "q3_k", "int2": "q2_k"}  # numbers whose grids GGUF has not
TOPS = {"embed": "token_embd.weight", "lm_head": "output.weight"}
Shapes = Mapping[str, tuple[int, ...]]  # [..., N, K] of tensors by name


def parse_type(word: str) -> Precision:
    """`int8`, `fp16`, `q4_k`, ...: one of GGUF's types.  Raises `ConfigError`."""
    lower = word.lower()
    kind = WORDS.get(lower, lower)
    if kind not in ENCODABLE:
        known = ["int8", "fp16", "fp32", *ENCODABLE]
        near = NEAREST.get(lower)
        raise ConfigError(
            "is no type of gguf that is written", "layer_precision", value=word,
            allowed=", ".join(known) + ("" if near else nearest(lower, known)),
            hint=f"nearest valid: {near}" if near else "",
        )  # fmt: skip
    return Precision(dense=kind) if kind in DENSE.values() else Precision(type=kind)


@dataclass(frozen=True, slots=True)
class LayerTypes:
    """What was named, of a model with so many layers."""

    named: NamedPrecision
    layers: int

    @classmethod
    def parse(cls, text: str, layers: int) -> "LayerTypes":
        """Raises `ConfigError`."""
        return cls(NamedPrecision.parse(text, layers, parse_type), layers)

    def find_recipe(self) -> str:
        """The recipe of the type that most layers have, where no other is given.  Raises
        `ConfigError` where layers are missing.
        """
        self.named.check_whole(self.layers, ", or give the --type of the others")
        counted = Counter(str(self.named.layers[i]) for i in range(self.layers))
        return counted.most_common(1)[0][0].upper()

    def list_types(self, shapes: Shapes, tied: bool) -> dict[str, str]:
        """The types of the matrices that are named, of those with `shapes`; `tied` where the head
        is the embedding.  Raises `ConfigError`.
        """
        tops = self._name_tops(tied)
        columns: dict[str, dict[str, int]] = {}  # of the tensors of a layer or a name
        found: dict[str, str] = {}
        for name, shape in shapes.items():
            layer = BLOCK.fullmatch(name)
            wanted = self.named.layers.get(int(layer[1])) if layer else tops.get(name)
            if wanted is not None:
                found[name] = str(wanted)
                columns.setdefault(layer[1] if layer else name, {})[name] = shape[-1]
        for together in columns.values():
            check_blocks(found[next(iter(together))], together)
        return found

    def _name_tops(self, tied: bool) -> dict[str, Precision]:
        """By tensor: the head of a tied model is its embedding."""
        tops = {TOPS["embed" if tied else word]: one for word, one in self.named.tops.items()}
        if tied and len(set(self.named.tops.values())) > 1:
            raise ConfigError(
                "names two types for embed and lm_head, which are one matrix of this model",
                "layer_precision", hint="name one of them",
            )  # fmt: skip
        return tops


def check_blocks(kind: str, columns: Mapping[str, int]) -> None:
    """Raises `ConfigError` where a type's blocks do not fill the rows of one of the tensors, given
    by the columns that they have.
    """
    block = FORMATS[kind].block
    unfit = {name: k for name, k in columns.items() if k % block}
    if not unfit:
        return
    near = kind
    for k in unfit.values():
        near = fit_kind(near, k)
    name, k = next(iter(unfit.items()))
    raise ConfigError(
        f"has blocks of {block}, which do not divide the {k} columns of {name}",
        "layer_precision", value=kind, hint=f"nearest valid: {near}",
    )  # fmt: skip
