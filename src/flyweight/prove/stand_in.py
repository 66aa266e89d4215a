"""Models that workloads need where the one inside the package is too small, written when needed.

Invariant: made from the model inside the package or from random weights, never fetched; the note of
each says that its answers mean nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from flyweight.describe import ASSETS, DEFAULT_MODEL
from flyweight.prove.predicting import LAYERS, write_predicting_folder
from flyweight.quantize.ggml.container import GgufTensor, GgufWriter, read_metadata
from flyweight.weights.gguf import read_gguf

LONG_CONTEXT = 8192
WIDE = {  # metadata without the architecture's name: 52 million weights, 104 MB in bfloat16
    "context_length": LONG_CONTEXT,
    "embedding_length": 768,
    "block_count": 8,
    "feed_forward_length": 2048,
    "attention.head_count": 12,
    "attention.head_count_kv": 4,
    "rope.dimension_count": 64,
}
SPREAD = 0.02  # standard deviation of a random weight
FILE_TYPE_BF16 = 32  # in ggml's list


@dataclass(frozen=True, slots=True)
class StandIn:
    """A model's file, and what a reader should know of it."""

    path: Path
    note: str


def write_long(folder: Path) -> StandIn:
    """The model inside the package, with a longer context in its metadata."""
    source = read_gguf(ASSETS / f"{DEFAULT_MODEL}.gguf")
    metadata = read_metadata(source)
    known = metadata["llama.context_length"]
    metadata["llama.context_length"] = type(known)(LONG_CONTEXT)  # type: ignore[call-arg]
    path = folder / "stories-long.gguf"
    tensors = [GgufTensor(name, one.kind, one.shape) for name, one in source.spans.items()]
    with GgufWriter(path, tensors, metadata) as out:
        for name, one in source.spans.items():
            out.write(name, source.file.copy(one.offset, one.nbytes, name))
    note = (
        f"stand-in: the model inside the package with its context of {known} raised to "
        f"{LONG_CONTEXT:,} tokens; speed does not depend on what it then writes"
    )
    return StandIn(path, note)


def write_wide(folder: Path) -> StandIn:
    """Random weights in bfloat16, more than caches hold, with the vocabulary of the model inside
    the package.
    """
    metadata = read_metadata(read_gguf(ASSETS / f"{DEFAULT_MODEL}.gguf"))
    metadata |= {f"llama.{key}": value for key, value in WIDE.items()}
    metadata |= {"general.name": "random weights", "general.file_type": FILE_TYPE_BF16}
    path, draw = folder / "random-wide.gguf", np.random.default_rng(0)
    tensors = list_wide_tensors(int(str(metadata["llama.vocab_size"])))
    with GgufWriter(path, tensors, metadata) as out:
        for tensor in tensors:
            out.write(tensor.name, draw_bytes(draw, tensor))
    weights = sum(prod(tensor.shape) for tensor in tensors)
    note = (
        f"stand-in: {weights / 1e6:.0f} million random weights in bfloat16, a Llama of "
        f"{WIDE['block_count']} layers; its answers mean nothing"
    )
    return StandIn(path, note)


def list_wide_tensors(vocab: int) -> list[GgufTensor]:
    hidden, inner = WIDE["embedding_length"], WIDE["feed_forward_length"]
    kv = WIDE["attention.head_count_kv"] * WIDE["rope.dimension_count"]
    found = [("token_embd", (vocab, hidden)), ("output_norm", (hidden,))]
    for i in range(WIDE["block_count"]):
        layer = {
            "attn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_output": (hidden, hidden),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        found += [(f"blk.{i}.{name}", shape) for name, shape in layer.items()]
    return [
        GgufTensor(f"{name}.weight", "f32" if len(shape) == 1 else "bf16", shape)
        for name, shape in found
    ]


def draw_bytes(draw: np.random.Generator, tensor: GgufTensor) -> bytes:
    """Norms are ones, matrices random, cut to 16 bits."""
    if tensor.kind == "f32":
        return np.ones(tensor.shape, np.float32).tobytes()
    values = draw.standard_normal(tensor.shape, np.float32) * np.float32(SPREAD)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_predicting(folder: Path) -> StandIn:
    """Random weights in bfloat16 that generate a cycle of tokens, and a layer that predicts it."""
    path = folder / "predicting"
    metadata = read_gguf(ASSETS / f"{DEFAULT_MODEL}.gguf").metadata
    weights = write_predicting_folder(path, metadata)
    note = (
        f"stand-in: {weights / 1e6:.0f} million random weights in bfloat16, a DeepSeek-V3 of "
        f"{LAYERS} layers and a prediction layer that is nearly always right: the speed-up is "
        "about the most that the method can give; the answers mean nothing"
    )
    return StandIn(path, note)


STAND_INS: dict[str, Callable[[Path], StandIn]] = {
    "long": write_long,
    "wide": write_wide,
    "predicting": write_predicting,
}
