"""A model that is served: a model as its requests see it, with the client of its engine.

Invariant: `users` are the requests that use it; it stays loaded meanwhile.  Knows no HTTP, no API,
and no other model.
"""

import time
from collections.abc import Collection, Sequence
from typing import Any

from flyweight.requests.preparing import RequestPreparer
from flyweight.server.engine_client import EngineClient
from flyweight.server.latency import LatencyModel
from flyweight.server.observability.counters import ServerCounters, StepObserver
from flyweight.server.observability.effective_config import EffectiveConfiguration
from flyweight.server.observability.log import ServerLog
from flyweight.server.request_model import RequestModel
from flyweight.server.settings import ServerSettings


class ServedModel(RequestModel):
    """A model, and what the API server knows of its engine."""

    def __init__(
        self,
        settings: ServerSettings,
        client: EngineClient,
        preparer: RequestPreparer,
        defaults: dict[str, Any],
        names: Sequence[str],
        aliases: Collection[str],
        effective: EffectiveConfiguration,
        log: ServerLog,
        counts: ServerCounters | None = None,
        latency: LatencyModel | None = None,
    ) -> None:
        super().__init__(settings, preparer, defaults, names, aliases, log, counts)
        self.client, self.effective = client, effective
        self.users, self.used = 0, time.monotonic()  # requests that use it; when one ended last
        self.latency = latency or LatencyModel()
        self.counts.count_joined = lambda: client.joined
        self.observer = StepObserver(
            self.counts, lambda: client.streams, log, facts=lambda: client.facts
        )

    def hold(self) -> None:
        """A request uses the model from now on."""
        self.users += 1

    def release(self) -> None:
        """It uses it no more."""
        self.users -= 1
        self.used = time.monotonic()
