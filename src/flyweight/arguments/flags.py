"""The engine's options, one row each: what is written, what it sets, what help says.

Invariant: every setting of the engine that a user may choose has a row, under vLLM's name where
vLLM has one.  Ranges are `Settings`'.
"""

from dataclasses import dataclass

from flyweight.validation.setting import Kind


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
    Flag(
        "model", "text", "A .gguf file, a folder or a name on the Hub; the same as MODEL.",
        metavar="MODEL",
    ),
    Flag(
        "revision", "text", "A branch, tag or commit of a model on the Hub.",
        "engine.revision", "NAME",
    ),
    Flag("offline", "switch", "Make no network call.", "engine.offline"),
    Flag(
        "dtype", "text",
        "Precision to compute in: auto, bfloat16 (half, float16), float32 (float).",
        metavar="TYPE",
    ),
    Flag(
        "quantization", "text", "Format that the weights must have: gguf.",
        metavar="KIND", also=("-q",),
    ),
    Flag(
        "load-format", "text",
        "Format of the weights: auto, gguf, safetensors, pt (pytorch_model.bin).",
        metavar="KIND",
    ),
    Flag(
        "generation-config", "text", "Sampling defaults: auto (the model's) or vllm (neutral).",
        metavar="NAME",
    ),
    Flag(
        "override-generation-config", "text", 'Sampling defaults over those: {"temperature": 0.3}.',
        metavar="JSON",
    ),
    Flag("enable-lora", "switch", "Serve LoRA adapters."),
    Flag(
        "lora-modules", "words", "LoRA adapters, each served as a model of its name.",
        metavar="NAME=FOLDER ...",
    ),
    Flag(
        "packed-cache", "switch", "Keep packed weights for the next start.",
        "engine.packed_cache",
    ),
)  # fmt: skip

ENGINE = (
    Flag(
        "max-model-len", "text", "Longest prompt and answer together: 4096, 32k, auto.",
        metavar="TOKENS",
    ),
    Flag(
        "memory-limit", "text", "Memory for everything together: 6GiB, 512MB, 80%.",
        "engine.memory_limit", "SIZE",
    ),
    Flag(
        "gpu-memory-utilization", "number", "The same as a share of the memory there is: 0.8.",
        metavar="SHARE",
    ),
    Flag(
        "kv-cache-memory-bytes", "size", "Memory for the K/V cache alone.",
        "engine.kv_cache_memory_bytes", "SIZE",
    ),
    Flag("num-gpu-blocks-override", "whole", "Blocks of the K/V cache.", "engine.blocks", "N"),
    Flag(
        "kv-cache-dtype", "text", "Precision of the K/V cache: auto, f16, bf16, f32.",
        metavar="TYPE",
    ),
    Flag(
        "block-size", "whole", "Tokens in a block of the K/V cache.",
        "engine.block_size", "TOKENS",
    ),
    Flag("threads", "whole", "Threads to compute with.", "engine.threads", "N"),
    Flag(
        "activations", "text", "Precision to multiply matrices in.",
        "engine.activations", "int8|bf16|f32",
    ),
    Flag("max-num-seqs", "whole", "Most sequences in a step.", "engine.max_num_seqs", "N"),
    Flag(
        "max-num-batched-tokens", "count", "Most tokens in a step.",
        "engine.max_num_batched_tokens", "TOKENS",
    ),
    Flag(
        "long-prefill-token-threshold", "whole",
        "Most tokens of one prompt in a step; 0: no limit.",
        "engine.long_prefill_token_threshold", "TOKENS",
    ),
    Flag(
        "enable-prefix-caching", "switch", "Reuse the K/V of prompts that begin alike.",
        "engine.enable_prefix_caching",
    ),
    Flag(
        "kv-cache-metrics", "switch", "Measure how long K/V blocks stay, for /metrics.",
        "engine.kv_cache_metrics",
    ),
    Flag(
        "kv-cache-metrics-sample", "number", "Share of the blocks to measure.",
        "engine.kv_cache_metrics_sample", "SHARE",
    ),
    Flag(
        "scheduling-policy", "text",
        "Order of requests: priority, or fcfs, which refuses priorities.",
        metavar="POLICY",
    ),
    Flag(
        "speculative-config", "text",
        'Speculative decoding: {"method": "ngram", "num_speculative_tokens": 4}.',
        metavar="JSON",
    ),
    Flag("seed", "whole", "Seed of requests that have none.", "engine.seed", "N"),
)  # fmt: skip
