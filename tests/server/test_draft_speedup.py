"""The measured speed-up of drafts: in a reply, at /metrics and in the effective configuration."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from http_server import Running, started

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
REPEATED: dict[str, Any] = {  # one token again and again: prompt lookup is always right
    "prompt": "a b", "max_tokens": 200, "ignore_eos": True, "allowed_token_ids": [100],
}  # fmt: skip
NAMES = {
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
}
SPEEDUP = "flyweight:spec_decode_speedup"


@pytest.fixture(scope="module")
def adaptive() -> Iterator[Running]:
    with started("--speculative-config", json.dumps(DRAFTS)) as running:
        yield running


def read_metrics(server: Running) -> dict[str, float]:
    """The samples of the page that are about drafts."""
    page = server.get("/metrics").body.decode()
    samples = (s for f in text_string_to_metric_families(page) for s in f.samples)
    return {s.name: s.value for s in samples if "spec_decode" in s.name}


def read_speculation(server: Running) -> dict[str, Any]:
    return dict(server.get("/v1/engine/effective").json["speculation"])


def test_nothing_is_reported_before_it_is_measured(adaptive: Running) -> None:
    assert SPEEDUP not in read_metrics(adaptive)
    assert read_speculation(adaptive)["speedup"] is None


def test_what_was_measured_is_reported_everywhere(adaptive: Running) -> None:
    """The controller verifies drafts once it has seen that they are right."""
    replies = []

    def draft() -> bool:
        got = adaptive.post("/v1/completions", REPEATED)
        assert got.status == 200, got.body
        replies.append(got.json["metrics"].get("draft_speedup", 0.0))
        return bool(read_speculation(adaptive)["accepted_tokens"])

    adaptive.until(draft)
    assert max(replies) > 0
    found, page = read_speculation(adaptive), read_metrics(adaptive)
    assert {name: page[known] for name, known in NAMES.items()} == {
        name: found[name] for name in NAMES
    }
    assert 0 < found["accepted_tokens"] <= found["draft_tokens"] and found["ended"] is False
    without, seconds = (
        page[f"flyweight:spec_decode_{name}_total"] for name in ("undrafted_seconds", "seconds")
    )
    assert page[SPEEDUP] == pytest.approx(without / seconds) == pytest.approx(found["speedup"])
    assert found["speedup"] > 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_streamed_reply_ends_with_it(adaptive: Running, path: str) -> None:
    """Where drafts were decided on while the request decoded."""
    body = {**REPEATED, "stream": True, "stream_options": {"include_usage": True}}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]

    def stream() -> bool:
        *pieces, last = adaptive.post(path, body).events
        assert all("draft_speedup" not in piece.get("metrics", {}) for piece in pieces)
        return bool(last["metrics"].get("draft_speedup", 0.0) > 0)

    adaptive.until(stream)
