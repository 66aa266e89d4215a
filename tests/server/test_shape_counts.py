"""Requests outside the shape of `flyweight compile`, counted by the limit that they exceed."""

import asyncio
import json

from test_metrics import VOCABULARY

from flyweight.engine.metrics import EngineMetrics
from flyweight.requests.collector import Collector
from flyweight.server.engine_client import EngineStream
from flyweight.server.observability.counters import ServerCounters, StepObserver
from flyweight.server.observability.log import ServerLog
from flyweight.server.pipe import Gauges, StepEvents, StepReport
from flyweight.text.tokenizer import load_tokenizer
from flyweight.types import Request, SamplingParams


def test_requests_outside_the_compiled_shape_are_counted_by_limit() -> None:
    tokenizer = load_tokenizer(json.loads(VOCABULARY.read_text(encoding="utf-8")))
    shape = {"max_batch_size": 2, "max_input_len": 4, "max_output_len": 3}
    streams: dict[str, EngineStream] = {}
    watch = StepObserver(
        ServerCounters(100), lambda: streams, ServerLog("text"), facts=lambda: {"compiled": shape}
    )

    def serve(prompt: int, answer: int, running: int) -> dict[str, int]:
        request = Request("r", (1,) * prompt, SamplingParams(), max_tokens=9)
        stream = EngineStream(Collector(request, tokenizer, "x"), asyncio.Event())
        streams["r"] = stream
        gauges = Gauges(running, 0, 8, 8, EngineMetrics(), 1, 0.1, 0.1)
        for at in range(answer):
            news = StepEvents("r", 0, (5,))
            watch.observe_step(StepReport([news], [], gauges, at=float(at)))
            stream.collector.choices[0].tokens.append(5)
        watch.observe_end(stream)
        return dict(watch.counts.outside)

    assert serve(prompt=4, answer=3, running=2) == dict.fromkeys(shape, 0)
    assert serve(prompt=5, answer=3, running=2) == dict.fromkeys(shape, 0) | {"max_input_len": 1}
    assert serve(prompt=1, answer=4, running=3) == dict.fromkeys(shape, 1)
    assert watch.counts.outside_shape == 3
    watch.facts = lambda: {"compiled": shape, "replicas": 3}
    assert serve(prompt=1, answer=1, running=6) == dict.fromkeys(shape, 1)
    watch.facts = dict  # nothing was compiled
    assert serve(prompt=9, answer=9, running=9) == dict.fromkeys(shape, 1)
