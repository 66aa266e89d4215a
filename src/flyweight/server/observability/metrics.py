"""The page of `/metrics`: the server's counters under the names of vLLM and of llama-server.

Invariant: names, labels and buckets are vLLM's, with more buckets below 10 ms; making a page
changes nothing.  Knows names, not how things are counted.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

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

from flyweight.engine.metrics import EngineMetrics
from flyweight.server.engine_client import EngineClient
from flyweight.server.observability.cost_metrics import ServedHistory, collect_costs
from flyweight.server.observability.costs import MachineCosts
from flyweight.server.observability.counters import Histogram, HttpCounts, ServerCounters
from flyweight.server.observability.metric_names import (
    BY_POSITION,
    CACHES,
    COUNTERS,
    DRAFTS,
    HISTOGRAMS,
    LABELS,
    OURS,
    REFUSED,
    RESIDENCY,
)
from flyweight.server.observability.replica_metrics import collect_replicas
from flyweight.server.pipe import Gauges

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
NOTHING = Gauges(0, 0, 1, 1, EngineMetrics(), 0, 0.0, 0.0)


class CountedModel(Protocol):
    """A model of the server: its counters, once it was loaded, and how often that was."""

    client: EngineClient
    counts: ServerCounters | None
    loads: int

    @property
    def name(self) -> str: ...
    @property
    def loading_seconds(self) -> float | None: ...


class MetricsPage(Collector):
    """One server's page; the first of the models is the default, `refused` counts refused requests
    by the limit of the queue that was reached.
    """

    def __init__(
        self,
        models: Sequence[CountedModel],
        refused: Mapping[str, int],
        http: HttpCounts,
        costs: MachineCosts,
    ) -> None:
        self.models, self.refused, self.http, self.costs = models, refused, http, costs
        self.history = ServedHistory()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics if the header `accept` names it."""
        kinds = [one.partition(";")[0].strip().lower() for one in accept.split(",")]
        if openmetrics.CONTENT_TYPE_LATEST.partition(";")[0] in kinds:
            # names have colons, which its other way of escaping would replace in samples alone
            made: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
                self.registry, openmetrics.ALLOWUTF8
            )
            return made, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self.registry), CONTENT

    def collect(self) -> Iterator[Metric]:
        models = [
            ModelFamilies(one.counts, one.client, one.name)
            for one in self.models
            if one.counts is not None
        ]
        yield from merge(chain.from_iterable(one.collect() for one in models))
        yield from self._server()
        yield from collect_replicas(self.models[0].client.host, self.models[0].name)
        served = self.history.note((one.name, one.counts) for one in self.models)
        yield from collect_costs(self.costs, served)
        yield from self._http()
        if models:  # else the models that were loaded are served no more
            yield from models[0].collect_llama()

    def _server(self) -> Iterator[Metric]:
        """What is of the whole server, labelled with its default model."""
        first = self.models[0].name, "0"
        restarts = CounterMetricFamily(
            "flyweight:engine_restarts", "Restarts of the engine process.", labels=LABELS
        )
        restarts.add_metric(first, self.models[0].client.host.restarts)
        yield restarts
        refused = CounterMetricFamily(
            "vllm:admission_rejections",
            "Rejected requests, by the limit exceeded.",
            labels=(*LABELS, "reason"),
        )
        for kind, word in REFUSED.items():
            refused.add_metric((*first, f"max_num_queued_{word}"), self.refused[kind])
        yield refused
        yield from self._loads()

    def _loads(self) -> Iterator[Metric]:
        text = "Times that the model was loaded.", "Time since the load under way began (s), or 0."
        loads = CounterMetricFamily("flyweight:model_loads", text[0], labels=LABELS)
        loading = GaugeMetricFamily("flyweight:model_loading_seconds", text[1], labels=LABELS)
        for one in self.models:
            loads.add_metric((one.name, "0"), one.loads)
            loading.add_metric((one.name, "0"), one.loading_seconds or 0.0)
        yield from (loads, loading)

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
            "http_request_duration_seconds",
            "HTTP request latency, by route.",
            labels=["handler", "method"],
        )
        for key, histogram in http.seconds.items():
            times.add_metric(key, list_buckets(histogram), histogram.sum)
        yield times
        fine = HistogramMetricFamily(
            "http_request_duration_highr_seconds", "HTTP request latency, all routes."
        )
        fine.add_metric((), list_buckets(http.fine), http.fine.sum)
        yield fine
        active = "HTTP requests in progress."
        yield GaugeMetricFamily("flyweight:http_requests_active", active, http.active)


class ModelFamilies:
    """The metrics of one model, labelled with its name."""

    def __init__(self, counts: ServerCounters, client: EngineClient, name: str) -> None:
        self.counts, self.client = counts, client
        self.labels = (name, "0")

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        for name, text, of in HISTOGRAMS:
            yield self._histogram("vllm:" + name, text, of(self.counts))
        if self.client.facts.get("kv_sample"):
            for name, text, of in RESIDENCY:
                yield self._histogram("vllm:" + name, text, of(self.counts))

    # --- the engine ---

    def _gauges(self) -> Iterator[Metric]:
        now = (self.client.gauges if self.client.ready else None) or NOTHING
        usage = 1 - now.free_blocks / now.blocks
        yield self._gauge("vllm:num_requests_running", "Running sequences.", now.running)
        yield self._gauge("vllm:num_requests_waiting", "Waiting sequences.", now.waiting)
        reasons = {"capacity": now.waiting, "deferred": 0}
        yield self._by(
            "vllm:num_requests_waiting_by_reason",
            "Waiting sequences, by reason.",
            "reason",
            reasons,
        )
        yield self._gauge("vllm:num_requests_swapped", "Swapped sequences (always 0).", 0)
        for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            yield self._gauge("vllm:" + name, "Fraction of K/V cache blocks in use.", usage)
        facts = self.client.facts
        room = facts.get("swap_space", 0) * facts.get("replicas", 1)  # that of each
        swapped = now.swapped / room if room else 0.0
        yield self._gauge("vllm:cpu_cache_usage_perc", "Share of the swap space in use.", swapped)
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._by(
            "vllm:engine_sleep_state", "Engine sleep state (always awake).", "sleep_state", states
        )
        yield self._config(self.client.facts)
        adapters = self.client.facts.get("adapters")
        if adapters:
            yield self._adapters(len(adapters))
        speedup = self.counts.totals.draft_speedup
        if speedup is not None:
            times = "Decoding speed with drafts over without, by the measured costs of steps."
            yield self._gauge("flyweight:spec_decode_speedup", times, speedup)

        up = "1 while the model is loaded and its engine accepts requests."
        yield self._gauge("flyweight:engine_up", up, int(self.client.ready))

    def _config(self, facts: Mapping[str, Any]) -> Metric:
        given = {
            "block_size": facts.get("block_size"),
            "cache_dtype": facts.get("kv_dtype"),
            "enable_prefix_caching": facts.get("prefix_caching"),
            "gpu_memory_utilization": read_share(self.client.begin.settings.get("memory_limit")),
            "num_gpu_blocks": facts.get("blocks"),
        }
        names = ("engine", *given)
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Configuration of the K/V cache.", labels=names
        )
        family.add_metric((self.labels[1], *(str(v) for v in given.values())), 1)
        return family

    def _adapters(self, loaded: int) -> Metric:
        """The running adapters, in labels as in vLLM; the value is the time."""
        running, waiting = set[str](), set[str]()
        for stream in self.client.streams.values():
            adapter = stream.collector.request.adapter
            if adapter:
                (running if stream.running else waiting).add(adapter)
        names = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use.", labels=names)
        listed = (str(loaded), ",".join(sorted(waiting)), ",".join(sorted(running)))
        family.add_metric(listed, time.time())
        return family

    def _counters(self) -> Iterator[Metric]:
        counts = self.counts
        for name, text, of in (*COUNTERS, *DRAFTS):
            yield self._counter("vllm:" + name, text, of(counts))
        for name, text, of in OURS:
            yield self._counter("flyweight:" + name, text, of(counts))
        joined = "Requests that shared the computation of an identical running one."
        yield self._counter("flyweight:coalesced_requests", joined, counts.coalesced)
        caching = self.client.facts.get("prefix_caching")
        queried = counts.prompt_tokens if caching else 0
        external, found_here = counts.totals["external_hits"], counts.count_found_here()
        looked_up = {
            "prefix": (queried, found_here),
            "external_prefix": (counts.totals["external_queries"], external),
            "gpu_prefix": (queried, found_here),
        }
        for cache, words in CACHES.items():
            queries, hits = looked_up.get(cache, (0, 0))
            name = f"vllm:{cache}_cache"
            yield self._counter(f"{name}_queries", f"Tokens looked up in {words}.", queries)
            yield self._counter(f"{name}_hits", f"Tokens found in {words}.", hits)
        sources = {
            "local_compute": counts.prompt_tokens - counts.cached_tokens,
            "local_cache_hit": found_here,
            "external_kv_transfer": external,
        }
        yield self._count(
            "vllm:prompt_tokens_by_source", "Prompt tokens, by source.", "source", sources
        )
        ended = "Finished choices, by reason."
        yield self._count("vllm:request_success", ended, "finished_reason", counts.reasons)
        outcomes = "Requests with deadlines, by outcome."
        yield self._count("flyweight:deadlines", outcomes, "outcome", counts.deadlines)
        steps = "Requests that an overload step changed."
        yield self._count("flyweight:degraded_requests", steps, "step", counts.degraded)
        exceeded = "Requests outside the shape of `flyweight compile`, by the limit they exceed."
        name = "flyweight:requests_outside_compiled_shape"
        yield self._count(name, exceeded, "limit", counts.outside)
        positions = {str(i): float(n) for i, n in enumerate(counts.totals.positions)}
        yield self._count("vllm:" + BY_POSITION[0], BY_POSITION[1], "position", positions)

    # --- llama-server's names ---

    def collect_llama(self) -> Iterator[Metric]:
        counts = self.counts
        now = (self.client.gauges if self.client.ready else None) or NOTHING
        steps = counts.totals["steps"]
        computed = counts.prompt_tokens - counts.cached_tokens
        reading, writing = counts.prefill.sum, counts.decode.sum
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens computed.", computed),
            ("prompt_seconds", "Prefill time (s).", reading),
            ("tokens_predicted", "Generated tokens.", counts.generation_tokens),
            ("tokens_predicted_seconds", "Decode time (s).", writing),
            ("n_decode", "Steps computed.", steps),
            *((name, text, of(counts)) for name, text, of in DRAFTS),
        ):
            yield CounterMetricFamily("llamacpp:" + name, text, value)
        accepted = CounterMetricFamily(
            "llamacpp:" + BY_POSITION[0], BY_POSITION[1], labels=["position"]
        )
        for position, found in enumerate(counts.totals.positions):
            accepted.add_metric((str(position),), found)
        yield accepted
        for name, text, gauge in (
            ("prompt_tokens_seconds", "Prompt tokens per second.", _rate(computed, reading)),
            (
                "predicted_tokens_seconds",
                "Generated tokens per second.",
                _rate(counts.generation_tokens, writing),
            ),
            ("requests_processing", "Running sequences.", now.running),
            ("requests_deferred", "Waiting sequences.", now.waiting),
            (
                "n_busy_slots_per_decode",
                "Mean number of sequences per step.",
                _rate(counts.seats, steps),
            ),
            (
                "n_tokens_max",
                "Most tokens of a finished request, prompt and answer.",
                counts.longest,
            ),
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
        return self._fill(family, values.items())

    def _count(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*LABELS, label))
        return self._fill(family, values.items())

    def _fill(self, family: Any, values: Iterable[tuple[str, float]]) -> Metric:
        for label, value in values:
            family.add_metric((*self.labels, label), value)
        found: Metric = family
        return found

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=LABELS)
        family.add_metric(self.labels, list_buckets(histogram), histogram.sum)
        return family


def read_share(limit: str | int | None) -> float | None:
    """The memory limit as a share, as in vLLM's option; None if it is not one."""
    text = str(limit).strip()
    return round(float(text[:-1]) / 100, 9) if text.endswith("%") else None


def list_buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Bounds in Prometheus' format, with cumulative counts."""
    found: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        found.append((bound, total))
    return found


def merge(families: Iterable[Metric]) -> Iterable[Metric]:
    """One family of each name, with the samples of all."""
    found: dict[str, Metric] = {}
    for family in families:
        known = found.setdefault(family.name, family)
        if known is not family:
            known.samples += family.samples
    return found.values()


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0
