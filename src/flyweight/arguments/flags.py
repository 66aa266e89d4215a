"""The engine's options, one row each: what is written, what it sets, what help says.

Invariant: every setting of the engine that a user may choose has a row, under vLLM's name where
vLLM has one.  Ranges are `Settings`'.
"""

from dataclasses import dataclass
from typing import Literal

# count: a whole number, 32k too; size: bytes, 8MiB too; pair: JSON or text as it is
Kind = Literal["whole", "count", "size", "number", "text", "switch", "words"]


@dataclass(frozen=True, slots=True)
class Flag:
    """An option.  `sets` is the field it goes to as it is, `engine.` or `server.`; without one,
    `choices` knows what it means.  `also` are further spellings; a switch may be said with --no-.
    """

    name: str
    kind: Kind
    help: str
    sets: str = ""
    metavar: str = ""
    also: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        return (f"--{self.name}", *self.also)


MODEL = (
    Flag("model", "text", "The same as MODEL.", metavar="MODEL"),
    Flag("revision", "text", "A branch, tag or commit on the Hub.", "engine.revision", "NAME"),
    Flag("offline", "switch", "Make no network call.", "engine.offline"),
    Flag(
        "dtype",
        "text",
        "What is computed with: auto, bfloat16 (half, float16), float32 (float).",
        metavar="TYPE",
    ),
    Flag("quantization", "text", "What the file must be: gguf.", metavar="KIND", also=("-q",)),
    Flag(
        "load-format",
        "text",
        "What the file must be: gguf, safetensors, pt (pytorch_model.bin).",
        metavar="KIND",
    ),
    Flag("generation-config", "text", "Whose defaults for sampling: auto (the model's), vllm."),
    Flag(
        "override-generation-config",
        "text",
        'Its own defaults for sampling: {"temperature": 0.3}.',
        metavar="JSON",
    ),
    Flag("enable-lora", "switch", "Serve LoRA adapters."),
    Flag("lora-modules", "words", "Adapters, each a model of its name.", metavar="NAME=FOLDER ..."),
    Flag("packed-cache", "switch", "Keep packed weights for next time.", "engine.packed_cache"),
)

ENGINE = (
    Flag("max-model-len", "text", "Prompt and answer together: 4096, 32k, auto.", "", "TOKENS"),
    Flag("memory-limit", "text", "For everything together: 6GiB, 80%.", "engine.memory_limit"),
    Flag("gpu-memory-utilization", "number", "The same as a share: 0.8 of what we may use."),
    Flag("kv-cache-memory-bytes", "size", "For K/V alone.", "engine.kv_cache_memory_bytes", "SIZE"),
    Flag("num-gpu-blocks-override", "whole", "Blocks of K/V.", "engine.blocks", "N"),
    Flag("kv-cache-dtype", "text", "auto, f16, bf16 or f32.", metavar="TYPE"),
    Flag("block-size", "whole", "Tokens in a block of K/V.", "engine.block_size", "TOKENS"),
    Flag("threads", "whole", "Threads to compute with.", "engine.threads", "N"),
    Flag(
        "activations", "text", "What matrices are multiplied with.", "engine.activations",
        "int8|bf16|f32",
    ),
    Flag("max-num-seqs", "whole", "Most sequences in a step.", "engine.max_num_seqs", "N"),
    Flag(
        "max-num-batched-tokens", "count", "Most tokens in a step.",
        "engine.max_num_batched_tokens", "TOKENS",
    ),
    Flag(
        "long-prefill-token-threshold", "whole", "Most of one prompt in a step; 0: no limit.",
        "engine.long_prefill_token_threshold", "TOKENS",
    ),
    Flag(
        "enable-prefix-caching", "switch", "Reuse the K/V of equal beginnings.",
        "engine.enable_prefix_caching",
    ),
    Flag(
        "kv-cache-metrics", "switch", "Time how long K/V blocks stay, for /metrics.",
        "engine.kv_cache_metrics",
    ),
    Flag(
        "kv-cache-metrics-sample", "number", "The share of blocks that are timed.",
        "engine.kv_cache_metrics_sample", "SHARE",
    ),
    Flag("scheduling-policy", "text", "priority; fcfs: none may be sent.", "", "POLICY"),
    Flag(
        "speculative-config", "text", '{"method": "ngram", "num_speculative_tokens": 4}.', "",
        "JSON",
    ),
    Flag("seed", "whole", "Seeds requests that have none of their own.", "engine.seed", "N"),
)  # fmt: skip
