"""The cost of the machine against that of the same tokens in a cloud, as metrics.

Invariant: what cannot be read or has no price has no metric.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from flyweight.server.observability.costs import MachineCosts, price_tokens
from flyweight.server.observability.metric_names import LABELS

ENERGY = "Energy of the processors since the server started (J)."
MACHINE = "Cost of this machine since the server started, at the configured prices."
CLOUD = "Cost of the tokens so far at the configured cloud prices."


class ServedTokens(NamedTuple):
    """Tokens of a model so far."""

    model: str
    prompt: int
    made: int


def collect_costs(costs: MachineCosts, served: Sequence[ServedTokens]) -> Iterator[Metric]:
    """The machine's own metrics have the name of the first model."""
    own = served[0].model, "0"
    joules = costs.read_joules()
    if joules is not None:
        energy = CounterMetricFamily("flyweight:energy_joules", ENERGY, labels=LABELS)
        energy.add_metric(own, joules)
        yield energy
    spent = costs.price(joules)
    if spent is not None:
        machine = GaugeMetricFamily("flyweight:machine_cost", MACHINE, labels=LABELS)
        machine.add_metric(own, spent)
        yield machine
    cloud = GaugeMetricFamily("flyweight:cloud_cost", CLOUD, labels=LABELS)
    for one in served:
        price = price_tokens(costs.settings, one.prompt, one.made)
        if price is not None:
            cloud.add_metric((one.model, "0"), price)
    if cloud.samples:
        yield cloud
