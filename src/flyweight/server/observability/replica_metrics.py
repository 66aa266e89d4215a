"""The metrics of replicas, each labelled with its number.

Invariant: numbers are used again, so labels do not grow with the replicas that came and went.
Knows no cluster.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from flyweight.server.engine_host import Host
from flyweight.server.replicas.gauges import NOTHING
from flyweight.server.replicas.host import ReplicaHost

LABELS = ("model_name", "replica")


def collect_replicas(host: Host, name: str) -> Iterator[Metric]:
    """The families of a model's replicas; none where one engine process serves it."""
    if not isinstance(host, ReplicaHost):
        return
    members, counts = list(host.set.members.values()), host.set.counts
    up = GaugeMetricFamily(
        "flyweight:replica_up", "1 for a replica that gets requests, 0 while it drains.",
        labels=LABELS,
    )  # fmt: skip
    running = GaugeMetricFamily(
        "flyweight:replica_requests_running", "Running sequences.", labels=LABELS
    )
    waiting = GaugeMetricFamily(
        "flyweight:replica_requests_waiting", "Waiting sequences.", labels=LABELS
    )
    usage = GaugeMetricFamily(
        "flyweight:replica_kv_cache_usage", "Fraction of K/V cache blocks in use.", labels=LABELS
    )
    for one in members:
        now, labels = host.gauges.newest.get(one.name, NOTHING), (name, str(one.slot))
        up.add_metric(labels, int(one.open))
        running.add_metric(labels, now.running)
        waiting.add_metric(labels, now.waiting)
        usage.add_metric(labels, 1 - now.free_blocks / now.blocks if now.blocks else 0.0)
    yield from (up, running, waiting, usage)
    for what, text, found in (
        ("requests", "Requests sent to a replica.", host.set.requests),
        ("expected_cached_tokens", "Prompt tokens that the router expected in its cache.",
         host.set.cached),
    ):  # fmt: skip
        family = CounterMetricFamily(f"flyweight:replica_{what}", text, labels=LABELS)
        for slot, number in sorted(found.items()):
            family.add_metric((name, str(slot)), number)
        yield family
    for what, text, number in (
        ("lost", "Replicas that ended without a plan.", counts.lost),
        ("retried_requests", "Requests that began again on another replica.", counts.retried),
        ("failed_requests", "Requests that ended as their replica was lost.", counts.failed),
    ):
        total = CounterMetricFamily(f"flyweight:replica_{what}", text, labels=LABELS[:1])
        total.add_metric((name,), number)
        yield total
