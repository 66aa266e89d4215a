"""The names of metrics, vLLM's and our own, and where each value is counted.

Invariant: a metric is one row of one table.
"""

from collections.abc import Callable

from flyweight.server.observability.counters import Histogram, ServerCounters

LABELS = ("model_name", "engine")
HISTOGRAMS: tuple[tuple[str, str, Callable[[ServerCounters], Histogram]], ...] = (
    ("time_to_first_token_seconds", "Time from arrival to the first token.", lambda c: c.ttft),
    ("inter_token_latency_seconds", "Time between two tokens of a choice.", lambda c: c.itl),
    ("time_per_output_token_seconds", "Same as vllm:inter_token_latency_seconds.", lambda c: c.itl),
    (
        "request_time_per_output_token_seconds",
        "Mean time per output token of a choice.",
        lambda c: c.tpot,
    ),
    ("e2e_request_latency_seconds", "Time from arrival to the last token.", lambda c: c.e2e),
    ("request_queue_time_seconds", "Time from arrival to the first step.", lambda c: c.queue),
    (
        "request_inference_time_seconds",
        "Time from the first step to the last token.",
        lambda c: c.inference,
    ),
    (
        "request_prefill_time_seconds",
        "Time from the first step to the first token.",
        lambda c: c.prefill,
    ),
    ("request_decode_time_seconds", "Time from the first token to the last.", lambda c: c.decode),
    ("request_prompt_tokens", "Prompt tokens per request.", lambda c: c.prompt),
    ("request_generation_tokens", "Generated tokens per choice.", lambda c: c.generation),
    (
        "request_max_num_generation_tokens",
        "Generated tokens of the longest choice.",
        lambda c: c.longest_generation,
    ),
    ("request_params_max_tokens", "Value of max_tokens.", lambda c: c.most),
    ("request_params_n", "Choices per request.", lambda c: c.choices),
    (
        "request_prefill_kv_computed_tokens",
        "Prompt tokens not in the prefix cache.",
        lambda c: c.computed,
    ),
    ("iteration_tokens_total", "Tokens computed per step.", lambda c: c.step),
)
RESIDENCY: tuple[tuple[str, str, Callable[[ServerCounters], Histogram]], ...] = (
    (
        "kv_block_lifetime_seconds",
        "Time from allocation to eviction of a K/V block.",
        lambda c: c.lifetime,
    ),
    (
        "kv_block_idle_before_evict_seconds",
        "Time from last use to eviction of a K/V block.",
        lambda c: c.idle,
    ),
    (
        "kv_block_reuse_gap_seconds",
        "Time between the last uses of a K/V block.",
        lambda c: c.reuse_gap,
    ),
)  # of a sample of the blocks, if enabled
COUNTERS: tuple[tuple[str, str, Callable[[ServerCounters], float]], ...] = (
    ("prompt_tokens", "Prompt tokens.", lambda c: c.prompt_tokens),
    ("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", lambda c: c.cached_tokens),
    ("generation_tokens", "Generated tokens.", lambda c: c.generation_tokens),
    ("num_preemptions", "Preempted sequences.", lambda c: c.totals["preempted"]),
)
DRAFTS: tuple[tuple[str, str, Callable[[ServerCounters], float]], ...] = (
    ("spec_decode_num_drafts", "Draft proposals verified.", lambda c: c.totals["drafts"]),
    ("spec_decode_num_draft_tokens", "Draft tokens verified.", lambda c: c.totals["proposed"]),
    ("spec_decode_num_accepted_tokens", "Accepted draft tokens.", lambda c: c.totals["accepted"]),
)
BY_POSITION = (
    "spec_decode_num_accepted_tokens_per_pos",
    "Accepted draft tokens, by position in the draft.",
)
OURS: tuple[tuple[str, str, Callable[[ServerCounters], float]], ...] = (
    ("steps", "Steps computed.", lambda c: c.totals["steps"]),
    ("busy_seconds", "Time spent in steps (s).", lambda c: c.busy),
    ("computed_tokens", "Tokens computed, recomputation included.", lambda c: c.totals["computed"]),
    (
        "shared_prefill_tokens",
        "Tokens not computed again, as a request waited for another's prompt.",
        lambda c: c.totals["awaited"],
    ),
    (
        "token_cache_queries",
        "Prompt texts whose token ids were looked up.",
        lambda c: c.token_queries,
    ),
    (
        "token_cache_hits",
        "Prompt texts whose token ids were known from an earlier request.",
        lambda c: c.token_hits,
    ),
    ("peer_hit_tokens", "Tokens whose K/V came from peers.", lambda c: c.totals["peer_hits"]),
    (
        "peer_received_bytes",
        "Bytes of K/V blocks received from peers.",
        lambda c: c.totals["peer_bytes"],
    ),
    ("peer_sent_bytes", "Bytes of K/V blocks sent to peers.", lambda c: c.totals["peer_sent"]),
    (
        "peer_transfers_given_up",
        "Transfers from peers that were not worth their time, or broke off.",
        lambda c: c.totals["peer_given_up"],
    ),
    (
        "peer_refusals",
        "Connections of peers with another secret, fingerprint or protocol.",
        lambda c: c.totals["peer_refused"],
    ),
    ("evicted_blocks", "Evicted K/V cache blocks.", lambda c: c.totals["evicted"]),
    (
        "spec_decode_seconds",
        "Time of steps that only decoded, drafting included (s); 0 unless drafts are adaptive.",
        lambda c: c.totals["decode_us"] / 1e6,
    ),
    (
        "spec_decode_undrafted_seconds",
        "The same without drafts, by the measured costs of steps (s).",
        lambda c: c.totals["undrafted_us"] / 1e6,
    ),
)
REFUSED = {"requests": "reqs", "tokens": "tokens"}
CACHES = {  # vLLM's; the first has two names
    "prefix": "the prefix cache",
    "external_prefix": "the external prefix cache",
    "mm": "a multimodal cache (always 0)",
    "gpu_prefix": "the prefix cache",
}
