"""Serves a load with a candidate's settings, in this process.

Invariant: every request of the load is answered in full before the figures are made; a warm-up that
is not counted comes first.  As many requests are under way as the load has users.
"""

import asyncio
import gc
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from flyweight.async_llm import AsyncLLM
from flyweight.errors import ConfigError
from flyweight.outputs import RequestMetrics
from flyweight.tune.load import TuningLoad, TuningRequest
from flyweight.tune.trial import LoadFigures, SettingsTrial
from flyweight.types import SamplingParams

SLOWEST = 0.9  # the share of requests that are at least as fast as a figure says


class LoadRunner:
    """Measures candidates of one model under one load.  `fixed` are settings of all of them."""

    def __init__(self, model: str, load: TuningLoad, fixed: Mapping[str, Any]) -> None:
        self.model, self.load, self.fixed = model, load, dict(fixed)

    def measure(self, candidate: SettingsTrial, size: int) -> LoadFigures:
        """Loads the model, serves a little, then `size` times the least load."""
        try:
            return asyncio.run(self._serve(candidate, self.load.make_requests(size)))
        finally:
            gc.collect()  # an engine is in cycles; its weights would count against the next one

    async def _serve(
        self, candidate: SettingsTrial, requests: Sequence[TuningRequest]
    ) -> LoadFigures:
        settings = self.fixed | dict(candidate.changes)
        model = settings.pop("model", self.model)
        async with AsyncLLM(model, max_requests=self.load.users, **settings) as llm:
            warm = [TuningRequest(one.ids[::-1], min(8, one.output)) for one in requests[:2]]
            await self._send(llm, warm)
            start = time.perf_counter()
            found = await self._send(llm, requests)
            seconds = time.perf_counter() - start
        return make_figures(found, [one.output for one in requests], seconds)

    async def _send(self, llm: AsyncLLM, requests: Sequence[TuningRequest]) -> list[RequestMetrics]:
        users = asyncio.Semaphore(self.load.users)

        async def send(one: TuningRequest) -> RequestMetrics:
            params = SamplingParams(temperature=0, max_tokens=one.output, ignore_eos=True)
            async with users:
                async for output in llm.generate([*one.ids], params):
                    last = output
            if len(last.outputs[0].token_ids) != one.output:
                raise ConfigError(
                    f"a request of the load ended after {len(last.outputs[0].token_ids)} of "
                    f"{one.output} tokens; runs of unequal work are not compared"
                )
            return last.metrics

        return [*await asyncio.gather(*map(send, requests))]


def make_figures(
    seen: Sequence[RequestMetrics], outputs: Sequence[int], seconds: float
) -> LoadFigures:
    """The figures of a load that took so many seconds."""
    gaps = [
        (one.total - one.ttft) / (count - 1)
        for one, count in zip(seen, outputs, strict=True)
        if count > 1
    ]
    tokens = sum(outputs)
    return LoadFigures(
        throughput=tokens / seconds,
        ttft=find_slow([one.ttft for one in seen]),
        itl=find_slow(gaps) if gaps else 0.0,
        latency=fmean(one.total for one in seen),
        tokens=tokens,
    )


def find_slow(values: Sequence[float]) -> float:
    """The least value that nine of ten are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(SLOWEST * len(ordered)))]
