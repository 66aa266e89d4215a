"""What `/metrics` shows: the server's counts under vLLM's names and labels, llama-server's beside
them.

Invariant: names, labels and buckets are vLLM's, with more buckets below 10 ms; a page is made when
it is asked for and changes nothing.  Knows how things are named, not how they come to be counted.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from flyweight.server.engine_client.client import EngineClient
from flyweight.server.observability.counters import Histogram, HttpCounts, ServerCounters
from flyweight.server.pipe import Gauges

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name", "engine")
NOTHING = Gauges(0, 0, 1, 1, (), 0, 0.0, 0.0)
HISTOGRAMS: tuple[tuple[str, str, Callable[[ServerCounters], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From arrival to the first token.", lambda c: c.ttft),
    ("inter_token_latency_seconds", "Between a stream's tokens, a step each.", lambda c: c.itl),
    ("time_per_output_token_seconds", "The older name of the same.", lambda c: c.itl),
    ("request_time_per_output_token_seconds", "Mean of a choice's tokens.", lambda c: c.tpot),
    ("e2e_request_latency_seconds", "From arrival to the last token.", lambda c: c.e2e),
    ("request_queue_time_seconds", "From arrival to the first step.", lambda c: c.queue),
    ("request_inference_time_seconds", "From the first step to the end.", lambda c: c.inference),
    ("request_prefill_time_seconds", "First step to first token.", lambda c: c.prefill),
    ("request_decode_time_seconds", "From the first token to the last.", lambda c: c.decode),
    ("request_prompt_tokens", "Tokens of a prompt.", lambda c: c.prompt),
    ("request_generation_tokens", "Tokens of a choice.", lambda c: c.generation),
    ("request_max_num_generation_tokens", "Of the longest choice.", lambda c: c.longest_generation),
    ("request_params_max_tokens", "What max_tokens came to.", lambda c: c.most),
    ("request_params_n", "Choices asked for.", lambda c: c.choices),
    ("request_prefill_kv_computed_tokens", "Prompt tokens not found.", lambda c: c.computed),
    ("iteration_tokens_total", "Tokens computed in a step.", lambda c: c.step),
)
RESIDENCY: tuple[tuple[str, str, Callable[[ServerCounters], Histogram]], ...] = (
    ("kv_block_lifetime_seconds", "From taken to evicted.", lambda c: c.lifetime),
    ("kv_block_idle_before_evict_seconds", "From last use to evicted.", lambda c: c.idle),
    ("kv_block_reuse_gap_seconds", "Between the last uses.", lambda c: c.reuse_gap),
)  # of a sample of the blocks, where that is asked for
COUNTERS: tuple[tuple[str, str, Callable[[ServerCounters], float]], ...] = (
    ("prompt_tokens", "Tokens of prompts.", lambda c: c.prompt_tokens),
    ("prompt_tokens_cached", "Of them, found in the prefix cache.", lambda c: c.cached_tokens),
    ("generation_tokens", "Tokens of answers.", lambda c: c.generation_tokens),
    ("num_preemptions", "Sequences that gave up their blocks.", lambda c: c.totals["preempted"]),
)
DRAFTS: tuple[tuple[str, str, Callable[[ServerCounters], float]], ...] = (
    ("spec_decode_num_drafts", "Drafts computed.", lambda c: c.totals["drafts"]),
    ("spec_decode_num_draft_tokens", "Guesses computed.", lambda c: c.totals["proposed"]),
    ("spec_decode_num_accepted_tokens", "Guesses that stood.", lambda c: c.totals["accepted"]),
)
BY_PLACE = "spec_decode_num_accepted_tokens_per_pos", "Guesses that stood, by place."
OURS: tuple[tuple[str, str, Callable[[ServerCounters], float]], ...] = (
    ("steps", "Steps computed.", lambda c: c.totals["steps"]),
    ("busy_seconds", "Seconds within steps.", lambda c: c.busy),
    ("computed_tokens", "Tokens computed, again ones too.", lambda c: c.totals["computed"]),
    ("evicted_blocks", "Contents that made room.", lambda c: c.totals["evicted"]),
)
REFUSED = {"requests": "reqs", "tokens": "tokens"}
CACHES = ("prefix", "external_prefix", "mm")  # of these three, there is the first


class MetricsPage(Collector):
    """One server's page; `refused` are requests for which the queue was full, by what there was too
    much of.
    """

    def __init__(
        self,
        counts: ServerCounters,
        client: EngineClient,
        name: str,
        refused: Mapping[str, int],
        http: HttpCounts,
    ) -> None:
        self.counts, self.client, self.refused, self.http = counts, client, refused, http
        self.labels = (name, "0")
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics where `accept`, a header, names it."""
        kinds = [one.partition(";")[0].strip().lower() for one in accept.split(",")]
        if openmetrics.CONTENT_TYPE_LATEST.partition(";")[0] in kinds:
            # names have colons, which its other way of escaping would replace in samples alone
            made: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
                self.registry, openmetrics.ALLOWUTF8
            )
            return made, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self.registry), CONTENT

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        for name, text, of in HISTOGRAMS:
            yield self._histogram("vllm:" + name, text, of(self.counts))
        if self.client.facts.get("kv_sample"):
            for name, text, of in RESIDENCY:
                yield self._histogram("vllm:" + name, text, of(self.counts))
        yield from self._http()
        yield from self._llama()

    # --- the engine ---

    def _gauges(self) -> Iterator[Metric]:
        now = (self.client.gauges if self.client.ready else None) or NOTHING
        usage = 1 - now.free_blocks / now.blocks
        yield self._gauge("vllm:num_requests_running", "Sequences being computed.", now.running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait.", now.waiting)
        reasons = {"capacity": now.waiting, "deferred": 0}
        yield self._by("vllm:num_requests_waiting_by_reason", "Why they wait.", "reason", reasons)
        yield self._gauge("vllm:num_requests_swapped", "Always 0: nothing is swapped.", 0)
        for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            yield self._gauge("vllm:" + name, "Share of K/V blocks held, 0 to 1.", usage)
        yield self._gauge("vllm:cpu_cache_usage_perc", "Always 0: nothing is swapped.", 0)
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._by("vllm:engine_sleep_state", "It never sleeps.", "sleep_state", states)
        yield self._config(self.client.facts)
        adapters = self.client.facts.get("adapters")
        if adapters:
            yield self._adapters(len(adapters))
        up = "Whether the engine's process takes requests."
        yield self._gauge("flyweight:engine_up", up, int(self.client.ready))

    def _config(self, facts: Mapping[str, Any]) -> Metric:
        given = {
            "block_size": facts.get("block_size"),
            "cache_dtype": facts.get("kv_dtype"),
            "enable_prefix_caching": facts.get("prefix_caching"),
            "gpu_memory_utilization": share(self.client.begin.settings.get("memory_limit")),
            "num_gpu_blocks": facts.get("blocks"),
        }
        names = ("engine", *given)
        family = GaugeMetricFamily("vllm:cache_config_info", "How K/V is kept.", labels=names)
        family.add_metric((self.labels[1], *(str(v) for v in given.values())), 1)
        return family

    def _adapters(self, loaded: int) -> Metric:
        """Which adapters are at work, in labels, as vLLM has it; the value is the time."""
        running, waiting = set[str](), set[str]()
        for stream in self.client.streams.values():
            adapter = stream.collector.request.adapter
            if adapter:
                (running if stream.running else waiting).add(adapter)
        names = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters at work.", labels=names)
        listed = (str(loaded), ",".join(sorted(waiting)), ",".join(sorted(running)))
        family.add_metric(listed, time.time())
        return family

    def _counters(self) -> Iterator[Metric]:
        counts = self.counts
        for name, text, of in (*COUNTERS, *DRAFTS):
            yield self._counter("vllm:" + name, text, of(counts))
        for name, text, of in OURS:
            yield self._counter("flyweight:" + name, text, of(counts))
        restarts = self.client.restarts
        yield self._counter("flyweight:engine_restarts", "Processes that ended.", restarts)
        caching = self.client.facts.get("prefix_caching")
        asked = counts.prompt_tokens if caching else 0
        for cache in (*CACHES, "gpu_prefix"):
            real = cache.endswith("prefix") and not cache.startswith("external")
            queries, hits = (asked, counts.cached_tokens) if real else (0, 0)
            yield self._counter(f"vllm:{cache}_cache_queries", "Tokens looked for.", queries)
            yield self._counter(f"vllm:{cache}_cache_hits", "Tokens found.", hits)
        found = counts.cached_tokens
        sources = {
            "local_compute": counts.prompt_tokens - found,
            "local_cache_hit": found,
            "external_kv_transfer": 0,
        }
        yield self._count("vllm:prompt_tokens_by_source", "Where K/V is from.", "source", sources)
        ended = "Choices by how they ended."
        yield self._count("vllm:request_success", ended, "finished_reason", counts.reasons)
        places = {str(place): float(n) for place, n in enumerate(counts.totals.places)}
        yield self._count("vllm:" + BY_PLACE[0], BY_PLACE[1], "position", places)
        refused = {f"max_num_queued_{word}": self.refused[kind] for kind, word in REFUSED.items()}
        yield self._count("vllm:admission_rejections", "By what was full.", "reason", refused)

    # --- HTTP ---

    def _http(self) -> Iterator[Metric]:
        http = self.http
        labels = ["handler", "method", "status"]
        total = CounterMetricFamily("http_requests", "Requests by route and status.", labels=labels)
        for where, n in http.requests.items():
            total.add_metric(where, n)
        yield total
        for name, summaries in (("request", http.taken), ("response", http.given)):
            family = SummaryMetricFamily(
                f"http_{name}_size_bytes", f"Bytes of {name} bodies.", labels=["handler"]
            )
            for route, one in summaries.items():
                family.add_metric((route,), one.count, one.sum)
            yield family
        times = HistogramMetricFamily(
            "http_request_duration_seconds", "By route.", labels=["handler", "method"]
        )
        for key, histogram in http.seconds.items():
            times.add_metric(key, buckets(histogram), histogram.sum)
        yield times
        fine = HistogramMetricFamily("http_request_duration_highr_seconds", "Finely, all routes.")
        fine.add_metric((), buckets(http.fine), http.fine.sum)
        yield fine
        active = "HTTP requests under way."
        yield GaugeMetricFamily("flyweight:http_requests_active", active, http.active)

    # --- llama-server's names ---

    def _llama(self) -> Iterator[Metric]:
        counts = self.counts
        now = (self.client.gauges if self.client.ready else None) or NOTHING
        steps = counts.totals["steps"]
        computed = counts.prompt_tokens - counts.cached_tokens
        reading, writing = counts.prefill.sum, counts.decode.sum
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens computed.", computed),
            ("prompt_seconds", "Seconds of prefill.", reading),
            ("tokens_predicted", "Tokens of answers.", counts.generation_tokens),
            ("tokens_predicted_seconds", "Seconds of decode.", writing),
            ("n_decode", "Steps computed.", steps),
            *((name, text, of(counts)) for name, text, of in DRAFTS),
        ):
            yield CounterMetricFamily("llamacpp:" + name, text, value)
        stood = CounterMetricFamily("llamacpp:" + BY_PLACE[0], BY_PLACE[1], labels=["position"])
        for place, found in enumerate(counts.totals.places):
            stood.add_metric((str(place),), found)
        yield stood
        for name, text, gauge in (
            ("prompt_tokens_seconds", "Prompt tokens a second.", _rate(computed, reading)),
            (
                "predicted_tokens_seconds",
                "Tokens of answers a second.",
                _rate(counts.generation_tokens, writing),
            ),
            ("requests_processing", "Sequences being computed.", now.running),
            ("requests_deferred", "Sequences that wait.", now.waiting),
            ("n_busy_slots_per_decode", "Sequences a step.", _rate(counts.seats, steps)),
            ("n_tokens_max", "Prompt and answer of the longest so far.", counts.longest),
        ):
            yield GaugeMetricFamily("llamacpp:" + name, text, gauge)

    # --- families ---

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self.labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self.labels, value)
        return family

    def _by(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=(*LABELS, label))
        return self._filled(family, values.items())

    def _count(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*LABELS, label))
        return self._filled(family, values.items())

    def _filled(self, family: Any, values: Iterable[tuple[str, float]]) -> Metric:
        for label, value in values:
            family.add_metric((*self.labels, label), value)
        found: Metric = family
        return found

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=LABELS)
        family.add_metric(self.labels, buckets(histogram), histogram.sum)
        return family


def share(limit: str | int | None) -> float | None:
    """A limit of memory that is a share of it, by default too, as vLLM's option has it."""
    text = str(limit).strip()
    return round(float(text[:-1]) / 100, 9) if text.endswith("%") else None


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Bounds as Prometheus writes them, with how many lie up to each."""
    found: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        found.append((bound, total))
    return found


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0
