"""Fuzz target: a GGUF file, opened as a model, its family looked up, every tensor read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from filewriters import BLOCKS, GGML_TYPES, encode, gguf_bytes, key, random_tensor, write_gguf
from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS
from flyweight.weights.gguf_names import ARCHITECTURES, spell

BIAS = encode(np.ones(4, np.float32), "bf16")

# The formats of GGUF; fuzz_quantized.py reads the others of the folder.
READERS = ("blocks", "codebook", "codebooks", "kquants", "values")


class Target:
    COVERED = (
        "weights/gguf.py",
        "weights/gguf_names.py",
        "weights/ggufmodel.py",
        "weights/mapped.py",
        "weights/gguf_config.py",
        *(f"weights/formats/{name}.py" for name in READERS),
    )

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model-00001-of-00002.gguf"
        second = {"general.architecture": "llama", "split.count": 2, "split.no": 1}
        write_gguf(folder / "model-00002-of-00002.gguf", second, {"b": BIAS})

    def seeds(self) -> Iterator[bytes]:
        """Every tensor kind, every type of metadata, every architecture, small."""
        rng = np.random.default_rng(1)
        for kind in (*GGML_TYPES, *BLOCKS):
            tensors = {"token_embd.weight": random_tensor(rng, kind, (2, 256))}
            yield write_gguf(self.path, shape("llama"), tensors).read_bytes()
        for arch in ARCHITECTURES:
            biased = "attn_norm" if arch == "deepseek2" else "attn_q"  # whose queries have none
            tensors = {f"blk.0.{biased}.bias": BIAS}
            yield write_gguf(self.path, shape(arch) | special(arch), tensors).read_bytes()
        scaling = {
            "llama.rope.scaling.type": "linear",
            "llama.rope.scaling.factor": 2.0,
            "llama.rope.scaling.original_context_length": 8,
            "tokenizer.ggml.eos_token_id": 1,
        }
        tensors = {"rope_freqs.weight": BIAS}
        yield write_gguf(self.path, shape("llama") | scaling, tensors).read_bytes()
        long = {f"rope_factors_{which}.weight": BIAS for which in ("long", "short")}
        longrope = {"llama.rope.scaling.original_context_length": 8}
        yield write_gguf(self.path, shape("llama") | longrope, long).read_bytes()
        parts = {"split.count": 2, "split.no": 0, "split.tensors.count": 2}
        yield write_gguf(self.path, shape("llama") | parts, {"a": BIAS}).read_bytes()
        layers = {"llama.attention.head_count_kv": np.full(2, 1, np.int32), "split.count": 1}
        old = {"llama.rope.scale_linear": 4.0, "general.alignment": 8}
        yield write_gguf(self.path, shape("llama") | layers | old, {}).read_bytes()
        arrays = [key(kind, np.zeros(2, kind)) for kind in "bBhHiIqQfd?"]
        least = [key(name, value) for name, value in shape("llama").items()]
        yield gguf_bytes([*least, *arrays, key("words", ["a", "bc"])], [], version=2)

    def execute(self, data: bytes) -> bool:
        """Whether the file is a model."""
        self.path.write_bytes(data)
        try:
            checkpoint = open_checkpoint(self.path.parent)  # which holds the two parts of a model
        except CheckpointError:
            return False
        try:
            assert len(checkpoint.fingerprint) == 32
            assert all(len(one) == 32 for one in checkpoint.compute_digests())
            for name, info in checkpoint.tensors.items():
                checkpoint.read(name, 0, info.shape[0])
                if len(info.shape) == 2 and FORMATS[info.kind].quantised:
                    checkpoint.read_blocks(name, 0, info.shape[0])
                for arch in ARCHITECTURES.values():  # `quantize` writes what it reads
                    spell(arch, name)
            find_family(checkpoint.config).read_spec(checkpoint.config)
            return True
        except CheckpointError:  # a quantised tensor that is no matrix, a shape no family has
            return False
        finally:
            checkpoint.close()


def shape(arch: str) -> dict[str, object]:
    """The least metadata a model needs."""
    return {
        "general.architecture": arch,
        f"{arch}.embedding_length": 8,
        f"{arch}.block_count": 2,
        f"{arch}.attention.head_count": 1,
        f"{arch}.feed_forward_length": 16,
        f"{arch}.context_length": 64,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.vocab_size": 2,
    }


def special(arch: str) -> dict[str, object]:
    """Windows, experts, latent attention, scaled rope: what some families have."""
    keys: dict[str, object] = {
        "attention.sliding_window": 4,
        "attention.sliding_window_pattern": np.array([True, False]),
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.layer_norm_epsilon": 1e-5,
        "expert_count": 2,
        "expert_used_count": 1,
        "expert_feed_forward_length": 4,
        "rope.dimension_count": 2,
        "rope.scaling.yarn_beta_fast": 32.0,
    }
    if arch == "deepseek2":
        keys |= {"attention.kv_lora_rank": 4, "expert_group_count": 2}
        keys |= {"expert_group_used_count": 1, "rope.scaling.yarn_log_multiplier": 0.1}
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
        keys |= {"rope.scaling.original_context_length": 32}
    without = {
        "llama4": ("attention.sliding_window_pattern",),  # its layers have chunks
        "minicpm": ("expert_count",),
    }
    kept = {key: value for key, value in keys.items() if key not in without.get(arch, ())}
    return {f"{arch}.{key}": value for key, value in kept.items()}
