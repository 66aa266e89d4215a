"""What an engine in this process came to: its effective configuration and its metrics.

Invariant: nothing is reported that was not read from the engine, its settings or the arguments that
were given.  The server reports more, at /v1/engine/effective.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict

from flyweight.arguments.draft import DEFAULT, SettingRequest
from flyweight.arguments.engine import EngineChoices
from flyweight.build import LoadedModel
from flyweight.config import Settings
from flyweight.describe import (
    choose_activations,
    describe_activations,
    describe_kernels,
    describe_scheduler,
)
from flyweight.engine.engine import Engine
from flyweight.outputs import Counter, Gauge
from flyweight.plan.memory import format_size
from flyweight.spec import KV_TYPES

COUNTERS = {  # vLLM's name for a total of the engine's
    "prefix_cache_hits": "cached",
    "generation_tokens": "produced",
    "num_preemptions": "preempted",
    "request_success": "finished",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "proposed",
    "spec_decode_num_accepted_tokens": "accepted",
}


def list_effective(chosen: EngineChoices, loaded: LoadedModel) -> list[dict[str, str]]:
    """Rows of feature, requested, effective and reason: what was decided, then every argument of
    vLLM that was given and is no setting.
    """
    rows = [*_list_decided(chosen, loaded), *chosen.notes]
    return [
        {
            "feature": row.feature,
            "requested": row.requested,
            "effective": row.effective,
            "reason": row.reason,
        }
        for row in rows
    ]


def _list_decided(chosen: EngineChoices, loaded: LoadedModel) -> Iterator[SettingRequest]:
    settings, limits, plan = chosen.settings, loaded.limits, loaded.memory

    def row(name: str, active: object, why: str) -> SettingRequest:
        return SettingRequest(name, chosen.given.get(name, DEFAULT), str(active), why)

    yield row("model", settings.model or "stories", f"family {loaded.spec.family}")
    yield row(
        "max_model_len", limits.max_model_len, f"the model was made for {loaded.spec.context}"
    )
    yield row(
        "memory_limit", format_size(plan.limit), f"{format_size(plan.need)} are needed at most"
    )
    if loaded.quantisation:
        yield row("quantised weights", loaded.quantisation, describe_kernels(loaded.opened))
    precision = choose_activations(settings)
    yield row("activations", precision, describe_activations(precision))
    yield row("kv_cache_dtype", plan.sizing.kv_dtype, KV_TYPES[plan.sizing.kv_dtype].meaning)
    yield row("block_size", limits.block_size, f"tokens in a block; {limits.blocks} blocks")
    yield row("max_num_seqs", limits.max_num_seqs, "sequences in a step")
    yield row("max_num_batched_tokens", limits.max_num_batched_tokens, "tokens in a step")
    yield row("scheduler", settings.scheduler, describe_scheduler(settings.scheduler))
    yield row("kv_cache", "on" if settings.kv_cache else "off", "K and V of computed tokens")
    yield row("enable_prefix_caching", "on" if limits.prefix_caching else "off",
              "prompts with equal beginnings share K/V blocks")  # fmt: skip
    folder = settings.prefix_cache_dir
    yield row("prefix_cache_dir", "off" if folder is None else str(folder),
              "where blocks of the prefix cache are kept for the next start")  # fmt: skip
    if settings.prefix_cache_peers or settings.prefix_cache_listen:
        yield row("prefix_cache_peers", settings.prefix_cache_peers or "none",
                  "servers that may have blocks which this one has not")  # fmt: skip
        yield row("prefix_cache_listen", settings.prefix_cache_listen or "off",
                  "where peers fetch blocks of the directory")  # fmt: skip
    yield row("swap_space", f"{settings.swap_space:g} GiB",
              "memory for blocks that the K/V cache has no room for")  # fmt: skip
    drafts = settings.speculation
    active, promise = "off", "answers are the same with and without"
    if drafts:
        active, promise = f"{drafts.method}, {drafts.depth}", drafts.promise
    if loaded.engine.metrics.drafting_ended:
        active, promise = "ended", "a failure ended drafting for all requests; the log names it"
    yield row("speculative_config", active, promise)
    yield row("threads", f"{plan.sizing.threads}{plan.sizing.spread}", "threads that compute")
    yield row("tensor_parallel_size", settings.tensor_parallel_size,
              "processes that share every layer")  # fmt: skip
    yield row("pipeline_parallel_size", settings.pipeline_parallel_size,
              "stages that the layers are divided into")  # fmt: skip
    if settings.backend == "cuda":
        yield from _list_gpu(settings, loaded.isa, row)
    else:
        yield row("isa", loaded.isa, "instruction set of the kernels")
    yield row("max_logprobs", settings.max_logprobs, "most log-probabilities of a token")
    if settings.adapters:
        yield row("adapters", ", ".join(settings.adapters), "LoRA adapters, by name")


def _list_gpu(
    settings: Settings, name: str, row: Callable[[str, object, str], SettingRequest]
) -> Iterator[SettingRequest]:
    """What is chosen on a GPU alone; `name` is the GPU's."""
    yield row("GPU", name, "the device that computes")
    why = "off: dense bf16 products of 64 rows and more by cuBLAS; on: 14 % slower prompts (H200)"
    yield row("deterministic", "on" if settings.deterministic else "off", why)
    if settings.ranks > 1:
        yield row("CUDA graphs", "off", "several ranks compute without them")
        return
    graphs = "off" if settings.enforce_eager else "on"
    yield row("CUDA graphs", graphs, "decode steps are captured and replayed")


def list_metrics(engine: Engine) -> list[Counter | Gauge]:
    """vLLM's names where it has one, flyweight's for the engine's other totals."""
    now = engine.stats()
    found: list[Counter | Gauge] = [
        Gauge("vllm:num_requests_running", now.running),
        Gauge("vllm:num_requests_waiting", now.waiting),
        Gauge("vllm:kv_cache_usage_perc", 1 - now.free_blocks / now.blocks),
    ]
    speedup = now.totals.draft_speedup
    if speedup is not None:
        found.append(Gauge("flyweight:spec_decode_speedup", speedup))
    totals = asdict(now.totals)
    known = set(COUNTERS.values())
    found += [Counter(f"vllm:{name}", totals[own]) for name, own in COUNTERS.items()]
    found += [Counter(f"flyweight:{own}", n) for own, n in totals.items() if own not in known]
    return found
