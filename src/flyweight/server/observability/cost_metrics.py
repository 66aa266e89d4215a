"""The cost of the machine against that of the same tokens in a cloud, as metrics.

Invariant: what cannot be read or has no price has no metric.  Tokens never become fewer, also
where a model is served no more.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from flyweight.server.observability.costs import MachineCosts, price_tokens
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.metric_names import LABELS

ENERGY = "Energy of the processors since the server started (J)."
MACHINE = "Cost of this machine since the server started, at the configured prices."
CLOUD = "Cost of the tokens so far at the configured cloud prices."
RATIO = "Cost of the tokens in a cloud over that of this machine; above 1 the machine is cheaper."


class ServedTokens(NamedTuple):
    """Tokens of a model so far."""

    model: str
    prompt: int
    made: int


class ServedHistory:
    """The tokens of models by their names, with those of earlier models of a name and of models
    that are served no more.  `note` is called whenever the metrics are read: a model that comes and
    goes between two readings is not known.
    """

    def __init__(self) -> None:
        self._counts: dict[str, ServerCounters] = {}  # the newest of each name: they may still grow
        self._before: dict[str, ServedTokens] = {}

    def note(self, models: Iterable[tuple[str, ServerCounters | None]]) -> list[ServedTokens]:
        """The tokens of these models, then of others that were served."""
        names = list[str]()
        for name, counts in models:
            names.append(name)
            known = self._counts.get(name)
            if counts is None or counts is known:
                continue
            if known is not None:
                self._before[name] = self._count(name)
            self._counts[name] = counts
        return [self._count(name) for name in dict.fromkeys([*names, *self._counts])]

    def _count(self, name: str) -> ServedTokens:
        _, prompt, made = self._before.get(name, ServedTokens(name, 0, 0))
        counts = self._counts.get(name)
        if counts is None:
            return ServedTokens(name, prompt, made)
        return ServedTokens(name, prompt + counts.prompt_tokens, made + counts.generation_tokens)


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
    if cloud.samples and spent:
        ratio = GaugeMetricFamily("flyweight:break_even_ratio", RATIO, labels=LABELS)
        ratio.add_metric(own, sum(sample.value for sample in cloud.samples) / spent)
        yield ratio
