"""/metrics: vLLM's names on a page a parser takes, and numbers that add up."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyweight.engine.metrics import EngineMetrics
from flyweight.requests.collector import Collector
from flyweight.server.engine_client import EngineClient, EngineStream
from flyweight.server.engine_host import EngineHost
from flyweight.server.observability.counters import (
    ITL,
    TTFT,
    EngineTotals,
    Histogram,
    ServerCounters,
    StepObserver,
    series,
)
from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.metrics import ModelFamilies, read_share
from flyweight.server.pipe import EngineSetup, Gauges, StepEvents, StepReport
from flyweight.text.tokenizer import load_tokenizer
from flyweight.types import Request, SamplingParams
from http_server import Running, served, started
from tiny_model import tiny_adapter, tiny_folder

# All that vLLM's V1 engine registers; behind them, older names its boards still ask for.
GAUGES = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc
engine_sleep_state cache_config_info lora_requests_info
gpu_cache_usage_perc num_requests_swapped cpu_cache_usage_perc
"""
COUNTERS = """
prefix_cache_queries prefix_cache_hits external_prefix_cache_queries external_prefix_cache_hits
mm_cache_queries mm_cache_hits num_preemptions prompt_tokens prompt_tokens_by_source
prompt_tokens_cached generation_tokens request_success admission_rejections
spec_decode_num_drafts spec_decode_num_draft_tokens spec_decode_num_accepted_tokens
spec_decode_num_accepted_tokens_per_pos
corrupted_requests prompt_tokens_recomputed estimated_flops_per_gpu estimated_read_bytes_per_gpu
estimated_write_bytes_per_gpu nixl_num_failed_transfers nixl_num_failed_notifications
nixl_num_kv_expired_reqs
gpu_prefix_cache_queries gpu_prefix_cache_hits
"""
HISTOGRAMS = """
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_inference_time_seconds
request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens
request_generation_tokens iteration_tokens_total request_max_num_generation_tokens request_params_n
request_params_max_tokens request_prefill_kv_computed_tokens
kv_block_lifetime_seconds kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds
nixl_xfer_time_seconds nixl_post_time_seconds nixl_bytes_transferred nixl_num_descriptors
time_per_output_token_seconds
"""
LLAMA = """
prompt_tokens_total prompt_seconds_total prompt_tokens_seconds tokens_predicted_total
tokens_predicted_seconds_total predicted_tokens_seconds requests_processing requests_deferred
n_decode_total n_busy_slots_per_decode n_tokens_max spec_decode_num_drafts_total
spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
"""
LORA = {"max_lora", "running_lora_adapters", "waiting_lora_adapters"}
VOCABULARY = Path(__file__).parents[1] / "data" / "text" / "tiny-spm.json"
DOCS = Path(__file__).resolve().parents[2] / "docs"
WAIT = 30.0


@pytest.fixture(scope="module")
def quiet() -> Iterator[Running]:
    """A server nobody else asks."""
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def opened() -> Iterator[Running]:
    """Metrics need no key; `test_keys` has that they do elsewhere."""
    words = ("--api-key", "sesame", "--open-metrics", "--gpu-memory-utilization", "0.7")
    with started(*words) as running:
        yield running


class Page:
    """A page of metrics, read by Prometheus' own parser."""

    def __init__(self, server: Running) -> None:
        got = server.get("/metrics")
        assert got.status == 200 and got.headers["content-type"].startswith("text/plain")
        self.families = {f.name: f for f in text_string_to_metric_families(got.body.decode())}
        self.samples = [s for f in self.families.values() for s in f.samples]

    def value(self, name: str, **labels: str) -> float:
        found = [
            s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with an adapter, guesses, and few blocks, all of them watched."""
    folder = tmp_path_factory.mktemp("everything")
    adapters = {"poet": str(tiny_adapter(folder / "poet"))}
    engine = {
        "model": str(tiny_folder(folder / "model")), "adapters": adapters, "speculative_config": {
            "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False,
        }, "kv_cache_metrics": True, "kv_cache_metrics_sample": 1.0,
        "blocks": 12, "max_model_len": 64, "block_size": 8, "max_num_seqs": 1,
    }  # fmt: skip
    with served(engine, {"max_queued_requests": 1}) as running:
        yield running


def refused_names() -> dict[str, str]:
    """vLLM's names that the documents say we do not have, and why."""
    text = (DOCS / "observability.md").read_text(encoding="utf-8")
    part = text.partition("### Unsupported vLLM metrics")[2]
    rows = re.findall(r"^\| (`vllm:.+) \| (.+) \|$", part, re.M)
    return {name: why for names, why in rows for name in re.findall("`vllm:([a-z_]+)`", names)}


def test_every_name_of_vllm_is_there_or_refused_with_a_reason(everything: Running) -> None:
    page, refused = Page(everything), refused_names()
    listed: set[str] = set()
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)):
        listed |= {*names.split()}
        for name in names.split():
            family = page.families.get(f"vllm:{name}")
            assert (family is None) == (name in refused), name
            if family is None:
                assert len(refused[name]) > 10
                continue
            assert family.type == kind, name
            for sample in family.samples:
                if name == "lora_requests_info":
                    assert {*sample.labels} == LORA
                    continue
                assert sample.labels["engine"] == "0", sample
                assert name == "cache_config_info" or sample.labels["model_name"], sample
    assert {*refused} <= listed
    assert {n[5:] for n in page.families if n.startswith("vllm:")} == listed - {*refused}


def test_names_next_to_vllms(quiet: Running) -> None:
    page = Page(quiet)
    assert {f"llamacpp:{name}" for name in LLAMA.split()} <= {s.name for s in page.samples}
    assert page.families["http_request_duration_highr_seconds"].type == "histogram"
    for unasked in ("kv_block_lifetime_seconds", "lora_requests_info"):
        assert f"vllm:{unasked}" not in page.families


def test_drafts_by_their_place(everything: Running) -> None:
    body = {"prompt": "a b", "max_tokens": 40, "ignore_eos": True, "allowed_token_ids": [100]}
    assert everything.post("/v1/completions", body).status == 200
    page = Page(everything)
    stood = [
        page.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(place))
        for place in range(4)
    ]
    drafts = page.value("vllm:spec_decode_num_drafts_total")
    guesses = page.value("vllm:spec_decode_num_draft_tokens_total")
    assert stood == sorted(stood, reverse=True) and 0 < stood[0] <= drafts <= guesses <= 4 * drafts
    assert sum(stood) == page.value("vllm:spec_decode_num_accepted_tokens_total")
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        name = f"spec_decode_num_{name}_total"
        assert page.value(f"llamacpp:{name}") == page.value(f"vllm:{name}"), name
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    assert [page.value(name, position=str(place)) for place in range(4)] == stood


def test_no_speedup_is_reported_where_drafts_are_not_adaptive(everything: Running) -> None:
    body = {"prompt": "a b", "max_tokens": 40, "ignore_eos": True, "allowed_token_ids": [100]}
    assert "draft_speedup" not in everything.post("/v1/completions", body).json["metrics"]
    page = Page(everything)
    assert page.value("vllm:spec_decode_num_accepted_tokens_total") > 0
    assert "flyweight:spec_decode_speedup" not in page.families
    assert page.value("flyweight:spec_decode_seconds_total") == 0
    assert everything.get("/v1/engine/effective").json["speculation"]["speedup"] is None


@pytest.mark.parametrize(
    ("limit", "found"), [("80%", 0.8), ("92.5%", 0.925), ("4GiB", None), (1 << 30, None)]
)
def test_a_limit_of_memory_as_a_share(limit: str | int, found: float | None) -> None:
    assert read_share(limit) == found


def test_the_share_of_memory_is_reported(quiet: Running, opened: Running) -> None:
    (one,) = Page(quiet).families["vllm:cache_config_info"].samples
    assert one.labels["gpu_memory_utilization"] == "0.8"
    (one,) = Page(opened).families["vllm:cache_config_info"].samples
    assert one.labels["gpu_memory_utilization"] == "0.7"


def test_how_long_blocks_stayed(everything: Running) -> None:
    for word in ("one", "two", "three", "four", "five", "six"):
        body = {"prompt": f"{word} " * 12, "max_tokens": 1}
        assert everything.post("/v1/completions", body).status == 200
    page = Page(everything)
    evicted = page.value("flyweight:evicted_blocks_total")
    assert 0 < evicted == page.value("vllm:kv_block_lifetime_seconds_count")
    lived = page.value("vllm:kv_block_lifetime_seconds_sum")
    assert 0 < page.value("vllm:kv_block_idle_before_evict_seconds_sum") <= lived


def test_adapters_at_work_are_named(everything: Running) -> None:
    (idle,) = Page(everything).families["vllm:lora_requests_info"].samples
    assert idle.labels["running_lora_adapters"] == "" == idle.labels["waiting_lora_adapters"]
    assert idle.labels["max_lora"] == "1"
    seen: set[str] = set()
    with ThreadPoolExecutor(2) as pool:
        body = {"model": "poet", "prompt": "hello", "max_tokens": 50, "ignore_eos": True}
        end = time.monotonic() + WAIT
        while "poet" not in seen and time.monotonic() < end:
            requested = pool.submit(everything.post, "/v1/completions", body)
            while not requested.done():
                (now,) = Page(everything).families["vllm:lora_requests_info"].samples
                seen.add(now.labels["running_lora_adapters"])
    assert seen <= {"", "poet"} and "poet" in seen
    assert abs(now.value - time.time()) < WAIT


def test_buckets_are_vllms_and_finer_ones() -> None:
    assert TTFT[0] == 0.001 and TTFT[-1] == 2560
    assert [b for b in ITL if b >= 0.01][:4] == [0.01, 0.025, 0.05, 0.075]
    assert len([b for b in ITL if b < 0.01]) > 4
    assert series(300) == (1, 2, 5, 10, 20, 50, 100, 200)


def test_a_value_on_a_bound_is_within_it() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 3):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1] and histogram.sum == 8


def test_totals_go_on_where_another_process_starts_over() -> None:
    totals = EngineTotals()
    steps = [5, 9, 2, 4]
    seen = []
    for step in steps:
        totals.take(EngineMetrics(steps=step))
        seen.append(totals["steps"])
    assert seen == [5, 9, 11, 13]


def test_swapped_bytes_are_a_share_of_all_replicas_swap() -> None:
    gauges = Gauges(0, 0, 8, 8, EngineMetrics(), 0, 0.0, 0.0, swapped=300)
    client: Any = SimpleNamespace(gauges=gauges, ready=True, begin=EngineSetup({}, 0.1))
    for replicas, share in ((1, 0.3), (3, 0.1)):
        client.facts = {"swap_space": 1000, "replicas": replicas}
        families = ModelFamilies(ServerCounters(512), client, "m")._gauges()
        found = {one.name: one.samples[0].value for one in families}
        assert found["vllm:cpu_cache_usage_perc"] == pytest.approx(share)


def test_what_is_counted_adds_up(quiet: Running) -> None:
    before = Page(quiet)
    body = {"prompt": "Once upon a time there was", "max_tokens": 40, "temperature": 0}
    used = [quiet.post("/v1/completions", {**body, "n": n}).json["usage"] for n in (1, 2)]
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    used.append(quiet.post("/v1/completions", streamed).events[-1]["usage"])
    page = Page(quiet)

    def grown(name: str, **labels: str) -> float:
        return page.value(name, **labels) - before.value(name, **labels)

    made = sum(u["completion_tokens"] for u in used)
    requested = sum(u["prompt_tokens"] for u in used)
    found = sum(u["prompt_tokens_details"]["cached_tokens"] for u in used)
    assert grown("vllm:generation_tokens_total") == made
    assert (
        grown("vllm:prompt_tokens_total") == grown("vllm:prefix_cache_queries_total") == requested
    )
    assert grown("vllm:prefix_cache_hits_total") == found
    assert grown("vllm:request_success_total", finished_reason="length") == 4
    assert grown("vllm:time_to_first_token_seconds_count") == 3
    assert grown("vllm:inter_token_latency_seconds_count") == made - 4
    assert grown("vllm:request_generation_tokens_sum") == made
    assert grown("vllm:request_params_n_sum") == 4
    assert page.value("llamacpp:n_tokens_max") >= used[0]["total_tokens"]
    assert grown("vllm:e2e_request_latency_seconds_sum") > 0
    assert grown("vllm:iteration_tokens_total_sum") >= requested - found + made - 4
    route = {"handler": "/v1/completions", "method": "POST"}
    assert page.value("http_requests_total", **route, status="2xx") >= 3
    assert page.value("http_request_duration_seconds_count", **route) >= 3
    assert page.value("http_response_size_bytes_sum", handler="/v1/completions") > 1000


def test_what_only_reads_prompts_adds_up_too(quiet: Running) -> None:
    before = Page(quiet)
    body = {"prompt": "Once upon a time", "temperature": 0}
    scored = {**body, "max_tokens": 0, "echo": True, "logprobs": 0}
    used = [quiet.post("/v1/completions", scored).json["usage"]]
    search = {**body, "max_tokens": 4, "use_beam_search": True, "n": 3}
    used.append(quiet.post("/v1/completions", search).json["usage"])
    used.append(quiet.post("/v1/embeddings", {"input": ["Once", "upon a"]}).json["usage"])
    page = Page(quiet)

    def grown(name: str, **labels: str) -> float:
        return page.value(name, **labels) - before.value(name, **labels)

    made = sum(u.get("completion_tokens", 0) for u in used)
    requested = sum(u["prompt_tokens"] for u in used)
    assert grown("vllm:generation_tokens_total") == made == 12
    assert grown("vllm:request_generation_tokens_sum") == made
    assert grown("vllm:prompt_tokens_total") == grown("vllm:request_prompt_tokens_sum") == requested
    assert grown("vllm:request_params_max_tokens_sum") == 4
    assert grown("vllm:request_params_n_sum") == 1 + 3
    assert grown("vllm:time_to_first_token_seconds_count") == 2
    assert grown("vllm:e2e_request_latency_seconds_count") == 2
    assert grown("vllm:request_prefill_time_seconds_count") == 2


def test_gaps_between_tokens_are_the_engines() -> None:
    """However late the front end learns of them, and however many at once."""
    request = Request("r", (1,), SamplingParams(), max_tokens=9)
    collector: Any = SimpleNamespace(request=request)
    streams = {"r": EngineStream(collector, asyncio.Event())}
    watch = StepObserver(ServerCounters(100), lambda: streams, ServerLog("text"))
    gauges = Gauges(1, 0, 8, 8, EngineMetrics(), 1, 0.1, 0.1)
    for at in (100.0, 100.25, 100.75):
        watch.observe_step(StepReport([StepEvents("r", 0, (5,))], [], gauges, at=at))
    assert (watch.counts.itl.count, watch.counts.itl.sum) == (2, 0.75)


def test_what_is_drawn_behind_a_stop_string_is_no_answers() -> None:
    """The engine learns of the stop a step or two later; another choice goes on."""
    tokenizer = load_tokenizer(json.loads(VOCABULARY.read_text(encoding="utf-8")))
    params = SamplingParams(n=2, stop="Lily")
    request = Request("r", (1,), params, max_tokens=40)
    said = tokenizer.encode(" named Lily. She said", add_special=False)
    watch = StepObserver(ServerCounters(100), lambda: client.streams, ServerLog("text"))
    client = EngineClient(EngineHost(print), EngineSetup({}, 0.2), watch.observe_step)
    stream = client.streams["r"] = EngineStream(Collector(request, tokenizer, "x"), asyncio.Event())
    gauges = Gauges(2, 0, 8, 8, EngineMetrics(), 2, 0.1, 0.1)
    for i, token in enumerate(said):
        news = [StepEvents("r", 0, (token,)), StepEvents("r", 1, (5,))]
        client.take(StepReport(news, [], gauges, at=1.0 + i))
    watch.observe_end(stream)
    counts = watch.counts
    kept = int(counts.generation.sum)
    assert len(said) < kept < 2 * len(said)
    assert (counts.generation_tokens, counts.itl.count) == (kept, kept - 2)


def test_running_goes_back_to_zero_after_a_client_left(quiet: Running) -> None:
    line = quiet.connection()
    raw = b'{"prompt": "One day", "max_tokens": 400, "ignore_eos": true, "stream": true}'
    line.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
    line.getresponse().read(100)
    assert quiet.get("/load").json == {"server_load": 1}
    line.close()
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        page = Page(quiet)
        running = page.value("vllm:num_requests_running")
        aborted = page.value("vllm:request_success_total", finished_reason="abort")
        if not running and aborted and page.value("flyweight:http_requests_active") == 1:
            return
    raise AssertionError((running, aborted))


def test_refused_requests_are_counted_without_labels_of_their_own(quiet: Running) -> None:
    quiet.get("/secret/" + "x" * 100)
    quiet.ask("PROPFIND", "/v1/completions")
    page = Page(quiet)
    assert page.value("http_requests_total", handler="none", method="GET", status="4xx") >= 1
    route = {"handler": "/v1/completions", "status": "4xx"}
    assert page.value("http_requests_total", method="other", **route) >= 1
    assert not any("secret" in str(s.labels) for s in page.samples)


def test_metrics_need_no_key_where_they_are_opened(opened: Running) -> None:
    assert opened.get("/metrics").status == 200
    assert opened.get("/v1/models").status == 401
    assert opened.get("/metrics", authorization="Bearer sesame").status == 200
