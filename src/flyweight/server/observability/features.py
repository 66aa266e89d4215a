"""A row of the effective configuration, and the rows of what the API server does with requests
before and after the engine.

Invariant: a row's counter is a total that /metrics has too.  Knows no engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.arguments.draft import DEFAULT, SettingRequests
from flyweight.plan.memory import format_size
from flyweight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """`counter` names the total that grows when the feature has an effect, `counts` its unit;
    `expected`: a total that stays 0 is reported.
    """

    name: str
    requested: str
    effective: str
    reason: str
    counter: str = ""
    counts: str = ""
    expected: bool = False


def list_request_rows(
    server: ServerSettings, requests: SettingRequests, facts: Mapping[str, Any]
) -> Iterator[FeatureRow]:
    """What is shared among requests, in the order in which they meet it."""
    size = server.token_cache_bytes
    yield FeatureRow(
        "token cache", requests.of("token-cache-bytes"), format_size(size) if size else "off",
        "the ids of a long text are kept, and found by requests of the same tenant"
        if size else "switched off; every prompt is tokenized",
        "token_hits", "texts whose ids were known",
    )  # fmt: skip
    yield from _list_load_rows(server, requests)
    shared = server.coalesce_requests
    yield FeatureRow(
        "coalescing", requests.of("coalesce-requests"), "on" if shared else "off",
        "identical requests of one tenant that run together are computed once"
        if shared else "switched off; each request is computed",
        "coalesced", "requests that joined another",
    )  # fmt: skip
    caching = bool(facts["prefix_caching"])
    yield FeatureRow(
        "shared prefill", DEFAULT, "on" if caching else "choices of one prompt",
        "a request waits for a beginning that another computes, instead of computing it again"
        if caching else "other requests share nothing without prefix caching",
        "awaited", "tokens not computed again",
    )  # fmt: skip


def _list_load_rows(server: ServerSettings, requests: SettingRequests) -> Iterator[FeatureRow]:
    """What is decided when a request enters the queue."""
    steps = server.overload_steps
    yield FeatureRow(
        "overload steps", requests.of("overload-steps", "overload-percent"), steps or "off",
        f"the first applies where {server.overload_percent} % of the queue is used"
        if steps else "not requested; beyond the queue's limits, requests are refused",
        "degraded_requests", "changes of requests",
    )  # fmt: skip
    yield FeatureRow(
        "deadlines", DEFAULT, "always" if server.max_priority else "without an order",
        "requests with slo start in time for it; a strict one is refused if it would be late"
        if server.max_priority else "requests start as they arrive; a strict slo is checked",
        "timed_requests", "requests with deadlines that were kept, missed or refused",
    )  # fmt: skip
    wait = server.batch_wait_ms
    yield FeatureRow(
        "batching window", requests.of("batch-wait-ms", "preferred-batch"),
        f"{wait} ms" if wait else "off",
        f"requests without a stream wait so long, or until there are {server.preferred_batch}"
        if wait else "not requested; a request joins the next step",
    )  # fmt: skip
