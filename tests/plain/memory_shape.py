"""A model of Qwen3-0.6B's shape, and what it needs of memory."""

from flyweight.models.registry import find_family
from flyweight.ops.cpu import CpuOps
from flyweight.plan.memory import MIB, Needs, Sizing
from flyweight.spec import Files

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
KIND = find_family(CONFIG)
SPEC = KIND.read_spec(CONFIG)
SIZING = Sizing(4096, 8, 512, 32, "f16", threads=2)
HELD = 90 * MIB


def kinds(matrix: str = "q4_0") -> dict[str, list[tuple[tuple[int, ...], str]]]:
    slots = KIND.plan(SPEC, Files()).slots
    return {s.name: [(s.shape, "f32" if s.kind == "vector" else matrix)] for s in slots}


NEEDS = Needs.of(SPEC, kinds(), CpuOps(1))
