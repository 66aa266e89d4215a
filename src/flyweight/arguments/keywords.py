"""The keywords of `LLM(...)` with their types, for editors and type checkers, and `EngineArgs`.

Invariant: each key is understood by `arguments.engine`; a test compares them.  None is as good as
not given.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypedDict,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

Dtype = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]


class EngineOptions(TypedDict, total=False):
    """Arguments of an engine.  Meanings and defaults are in docs/python-api.md."""

    # settings, see `config.Settings`
    max_model_len: int | str | None
    memory_limit: int | str | None
    threads: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    enable_expert_parallel: bool | None
    nnodes: int | None
    node_rank: int | None
    master_addr: str | None
    master_port: int | None
    node_secret_file: str | os.PathLike[str] | None
    distributed_timeout_seconds: int | None
    activations: Literal["int8", "bf16", "f32"] | None
    kv_cache_dtype: str | None
    kv_cache_memory_bytes: int | None
    block_size: int | None
    blocks: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    scheduler: Literal["continuous", "static"] | None
    long_prefill_token_threshold: int | None
    enable_prefix_caching: bool | None
    prefix_cache_dir: str | os.PathLike[str] | None
    prefix_cache_gb: float | None
    prefix_cache_peers: str | None
    prefix_cache_listen: str | None
    prefix_cache_secret_file: str | os.PathLike[str] | None
    prefix_cache_peer_rate: int | None
    swap_space: float | None  # vLLM's too
    kv_cache: bool | None
    kv_cache_metrics: bool | None
    kv_cache_metrics_sample: float | None
    speculative_config: str | Mapping[str, Any] | None
    draft_tokens: int | None  # in place of a speculative_config of method ngram
    prompt_lookup_max: int | None
    prompt_lookup_min: int | None
    prompt_logprob_rows: int | None
    max_logprobs: int | None
    seed: int | None
    adapters: Mapping[str, str | os.PathLike[str]] | None
    revision: str | None
    load_format: str | None
    offline: bool | None
    packed_cache: bool | None
    max_kld: float | None
    backend: Literal["cpu", "cuda", "reference"] | None
    isa: str | None
    # vLLM's, see `arguments.meanings`
    dtype: Dtype | None
    quantization: str | Mapping[str, Any] | None
    gpu_memory_utilization: float | None
    num_gpu_blocks_override: int | None
    scheduling_policy: Literal["priority", "fcfs"] | None
    generation_config: str | None
    override_generation_config: Mapping[str, Any] | None
    enable_lora: bool | None
    # vLLM's that choose nothing here, see `arguments.compat`
    tokenizer: str | None
    tokenizer_mode: str | None
    trust_remote_code: bool | None
    runner: str | None
    task: str | None
    convert: str | None
    device: str | None
    model_impl: str | None
    config_format: str | None
    data_parallel_size: int | None
    distributed_executor_backend: str | None
    disable_custom_all_reduce: bool | None
    cpu_offload_gb: float | None
    enforce_eager: bool | None
    enable_chunked_prefill: bool | None
    disable_hybrid_kv_cache_manager: bool | None
    deterministic: bool | None
    prefix_caching_hash_algo: str | None
    calculate_kv_scales: bool | None
    preemption_mode: str | None
    num_scheduler_steps: int | None
    scheduler_delay_factor: float | None
    async_scheduling: bool | None
    max_seq_len_to_capture: int | None
    max_loras: int | None
    max_lora_rank: int | None
    max_cpu_loras: int | None
    fully_sharded_loras: bool | None
    lora_dtype: str | None
    logprobs_mode: str | None
    disable_log_stats: bool | None
    use_tqdm_on_load: bool | None
    guided_decoding_backend: str | None
    structured_outputs_config: Mapping[str, Any] | None
    safetensors_load_strategy: str | None
    pt_load_map_location: str | None
    skip_tokenizer_init: bool | None
    enable_prompt_embeds: bool | None
    enable_sleep_mode: bool | None
    compilation_config: int | Mapping[str, Any] | None
    attention_backend: str | None
    limit_mm_per_prompt: Mapping[str, Any] | None
    mm_processor_kwargs: Mapping[str, Any] | None
    pooler_config: Mapping[str, Any] | None
    served_model_name: str | Sequence[str] | None


def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds an option for each argument; `LLM(**vars(parser.parse_args()))` takes what is parsed."""
    parser.add_argument("--model")
    for name, hint in get_type_hints(EngineOptions).items():
        option, kinds = f"--{name.replace('_', '-')}", get_args(hint)
        if bool in kinds:
            parser.add_argument(option, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(option, type=find_reader(kinds))
    return parser


def from_cli_args(cls: type[Any], args: argparse.Namespace) -> Any:
    """What `add_cli_args` parsed; other options of the parser are left out."""
    return cls(**{name: getattr(args, name) for name in vars(cls()) if hasattr(args, name)})


def find_reader(kinds: tuple[Any, ...]) -> Callable[[str], Any]:
    """What makes a value of these kinds of text."""
    if str in kinds and int in kinds:
        return lambda text: int(text) if text.lstrip("-").isdecimal() else text
    if any(get_origin(kind) is Mapping for kind in kinds):
        return json.loads
    return next((kind for kind in kinds if kind in (int, float)), str)


if TYPE_CHECKING:

    @dataclass
    class EngineArgs:
        """vLLM's class: the arguments of an `LLM`, kept until one is made."""

        model: str | None = None

        def __init__(self, model: str | None = None, **options: Unpack[EngineOptions]) -> None: ...
        @staticmethod
        def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser: ...
        @classmethod
        def from_cli_args(cls, args: argparse.Namespace) -> Self: ...

else:
    EngineArgs = make_dataclass(
        "EngineArgs",
        [(name, object, None) for name in ("model", *EngineOptions.__annotations__)],
        namespace={
            "__doc__": "vLLM's class: the arguments of an `LLM`, kept until one is made.",
            "add_cli_args": staticmethod(add_cli_args),
            "from_cli_args": classmethod(from_cli_args),
        },
    )
    EngineArgs.__module__ = __name__


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLM.from_engine_args`."""
