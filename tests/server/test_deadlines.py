"""Deadlines: read and refused over HTTP, predicted, kept or missed; they change no answer."""

import asyncio
import json
import re
from array import array
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request as HttpRequest

from flyweight.engine.metrics import EngineMetrics
from flyweight.requests.collector import Collector
from flyweight.requests.prompts import PreparedPrompt, RequestContext
from flyweight.server import api_server
from flyweight.server.admission.deadlines import Deadlines, TimedRequest, judge
from flyweight.server.admission.request_group import AdmittedRequest
from flyweight.server.engine_client import EngineStream
from flyweight.server.latency import LEAST, LatencyModel, RequestDemand, measure_backlog
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.log import ServerLog
from flyweight.server.pipe import Gauges, Submit
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import add_headers, reply
from flyweight.text.tokenizer import load_tokenizer
from flyweight.types import Event, Finish, Request, RequestWords, SamplingParams, Timings
from http_server import Running, served

VOCABULARY = Path(__file__).parents[1] / "data" / "text" / "tiny-spm.json"
TALK = [{"role": "user", "content": "Hi"}]
TEXT = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK, "max_tokens": 1},
    TEXT: {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 16},
    "/v1/messages": {"model": "stories", "messages": TALK, "max_tokens": 1},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/api/chat": {"model": "stories", "messages": TALK, "stream": False},
    "/api/generate": {"model": "stories", "prompt": "a", "stream": False},
    "/generate": {"prompt": "a", "max_tokens": 1},
}
RANGE = "1 to 86400000 milliseconds"
YEAR = 365 * 86_400_000
SLOW = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=20"}  # each step
SHORT = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
ARRIVED = 1000.0


@pytest.fixture(scope="module")
def slow() -> Iterator[Running]:
    with served({}, {}, **SLOW) as running:
        yield running


# --- bodies and headers ---


@pytest.mark.parametrize("path", BODIES)
def test_every_route_that_generates_takes_deadlines(server: Running, path: str) -> None:
    body = BODIES[path]
    plain = server.post(path, {**body, "slo": {"ttft_ms": 86_400_000, "e2el_ms": 1.5}})
    assert plain.status == 200, plain.body
    for name in ("ttft_ms", "e2el_ms"):
        refused = server.post(path, {**body, "slo": {name: 0}})
        words = f"slo.{name} = 0 is not valid; allowed: {RANGE}; nearest valid: 1"
        assert refused.status == 400 and words in refused.body.decode()
        header = f"x-slo-{name.replace('_', '-')}"
        refused = server.post(path, body, **{header: "0"})
        words = f"{header} = '0' is not valid; allowed: {RANGE}; nearest valid: 1"
        assert refused.status == 400 and words in refused.body.decode()
        # the body wins
        assert server.post(path, {**body, "slo": {name: 5}}, **{header: "0"}).status == 200


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-5, f"-5 is not valid; allowed: {RANGE}; nearest valid: 1"),
        (0.5, f"0.5 is not valid; allowed: {RANGE}; nearest valid: 1"),
        (YEAR, f"{YEAR} is not valid; allowed: {RANGE}; nearest valid: 86400000"),
        ("soon", f"'soon' is not valid; allowed: {RANGE}"),
        ("100", f"'100' is not valid; allowed: {RANGE}"),
        (True, f"True is not valid; allowed: {RANGE}"),
    ],
)
def test_other_values_are_refused_with_the_range(
    server: Running, value: object, problem: str
) -> None:
    got = server.post(TEXT, {**BODIES[TEXT], "slo": {"ttft_ms": value}})
    error = got.json["error"]
    assert (got.status, error["param"], error["code"]) == (400, "slo.ttft_ms", "bad_value")
    assert error["message"] == f"slo.ttft_ms = {problem}"


@pytest.mark.parametrize("value", ["", "soon", "-5", "1e9", "nan", "0x10", str(YEAR), "9" * 400])
def test_other_headers_are_refused_with_the_range(server: Running, value: str) -> None:
    got = server.post(TEXT, BODIES[TEXT], **{"x-slo-e2el-ms": value})
    error = got.json["error"]
    assert (got.status, error["param"], error["code"]) == (400, "x-slo-e2el-ms", "bad_value")
    assert f"allowed: {RANGE}" in error["message"]


def test_other_fields_and_switches_are_refused(server: Running) -> None:
    got = server.post(TEXT, {**BODIES[TEXT], "slo": {"ttft": 5}})
    assert got.status == 400 and "slo.ttft: unknown field" in got.json["error"]["message"]
    got = server.post(TEXT, BODIES[TEXT], **{"x-slo-strict": "perhaps"})
    assert got.json["error"]["message"] == (
        "x-slo-strict = 'perhaps' is not valid; allowed: true, false"
    )
    assert server.post(TEXT, {**BODIES[TEXT], "slo": {}}).status == 200
    assert server.post("/v1/embeddings", {"input": "a"}, **{"x-slo-ttft-ms": "0"}).status == 200


# --- a server whose steps take 20 ms ---


def count_outcomes(server: Running) -> dict[str, int]:
    page = server.get("/metrics").body.decode()
    found = re.findall(r'^flyweight:deadlines_total{.*outcome="(\w+)".*} (\d+)', page, re.M)
    return {outcome: int(count) for outcome, count in found}


def test_deadlines_are_predicted_counted_and_change_no_answer(slow: Running) -> None:
    strict = {**SHORT, "slo": {"ttft_ms": 1, "strict": True}}
    first = slow.post(TEXT, strict)
    assert first.status == 200, "nothing is refused while no cost is known"
    assert not [name for name in first.headers if name.startswith("x-predicted")]
    for _ in range(LEAST + 1):
        slow.post(TEXT, SHORT)
    before = count_outcomes(slow)
    assert before == {"met": 0, "missed": 1, "refused": 0}
    late = slow.post(TEXT, {**SHORT, "slo": {"ttft_ms": 1}})
    assert late.status == 200 and late.json["choices"] == first.json["choices"], "a soft deadline"
    # the correction is at least a quarter
    for name, least in (("ttft_ms", 5), ("e2el_ms", 20)):
        header = late.headers[f"x-predicted-{name.replace('_', '-')}"]
        assert late.json["metrics"][f"predicted_{name}"] == float(header) >= least
    day = {"x-slo-e2el-ms": "86400000", "x-slo-strict": "true"}
    stream = slow.post(TEXT, {**SHORT, "stream": True}, **day)
    assert stream.status == 200 and float(stream.headers["x-predicted-e2el-ms"]) >= 20
    refused = slow.post(TEXT, strict)
    error = refused.json["error"]
    assert (refused.status, error["code"]) == (429, "deadline_unreachable")
    assert error["param"] == "slo.ttft_ms" and int(refused.headers["retry-after"]) >= 1
    predicted = refused.headers["x-predicted-ttft-ms"]
    assert f"the first token is predicted after {predicted} ms" in error["message"]
    slow.until(lambda: count_outcomes(slow) == {"met": 1, "missed": 2, "refused": 1})


# --- predictions ---


def make_model(known: bool = True) -> Any:
    """A prompt of 100 tokens takes 200 ms, each token after the first 10 ms."""
    latency = LatencyModel()
    client: Any = SimpleNamespace(streams={}, facts={"max_num_seqs": 4}, gauges=None)
    if known:
        for prompt, tokens, seconds in ((100, 100, 0.2), (0, 1, 0.01)):
            latency.record_step(
                Gauges(1, 0, 8, 8, EngineMetrics(), tokens, seconds, 0.0, (), prompt)
            )
        for _ in range(LEAST):
            made = latency.forecast(measure_backlog(client), RequestDemand(100, 1, 11))
            latency.record_request(made, 0.2, 0.1, 11)
    return SimpleNamespace(
        latency=latency, client=client, counts=ServerCounters(100), max_model_len=512,
        names=("m",),
    )  # fmt: skip


def make_prompt() -> PreparedPrompt:
    params = SamplingParams(max_tokens=11)
    return PreparedPrompt(None, array("i", [5] * 100), params, RequestContext(), RequestWords())


def time_request(deadlines: Deadlines | None, known: bool = True) -> TimedRequest:
    """One that begins 50 ms after it arrived."""
    clock = iter([ARRIVED + 0.05, *[ARRIVED + 0.46] * 9])
    return TimedRequest(make_model(known), [make_prompt()], ARRIVED, deadlines, lambda: next(clock))


def test_predicted_times_are_counted_from_the_arrival() -> None:
    assert time_request(Deadlines(1.0)).prediction == {"ttft_ms": 250.0, "e2el_ms": 350.0}
    assert time_request(None).prediction == {}
    assert time_request(Deadlines(1.0), known=False).prediction == {}


@pytest.mark.parametrize(
    ("deadlines", "known", "start"),
    [
        (None, True, inf),
        (Deadlines(0.5), True, ARRIVED + 0.3),
        (Deadlines(0.5, 0.55), True, ARRIVED + 0.25),
        (Deadlines(inf, 1.0), True, ARRIVED + 0.7),
        (Deadlines(0.5, 0.55), False, ARRIVED + 0.5),
    ],
)
def test_a_request_must_start_before_what_it_takes(
    deadlines: Deadlines | None, known: bool, start: float
) -> None:
    timed = time_request(deadlines, known)
    assert timed.find_start() == pytest.approx(start)
    (prompt,) = timed.schedule([make_prompt()])
    assert prompt.lane.start_by == timed.find_start()


def test_only_strict_requests_are_refused() -> None:
    for deadlines in (Deadlines(0.2), Deadlines(0.25, 0.35, strict=True), None):
        time_request(deadlines).check()
    time_request(Deadlines(0.001, strict=True), known=False).check()
    stale = time_request(Deadlines(0.2, strict=True))
    stale.model.latency.clock = lambda: inf
    stale.check()
    timed = time_request(Deadlines(0.2, strict=True))
    with pytest.raises(HttpError) as caught:
        timed.check()
    assert caught.value.message == (
        "slo.ttft_ms = 200 would be missed: the first token is predicted after 250 ms, and without "
        "other requests after 200 ms"
    )
    assert caught.value.headers == {"retry-after": "1"}
    assert timed.model.counts.deadlines == {"met": 0, "missed": 0, "refused": 1}
    with pytest.raises(HttpError, match=r"^slo.e2el_ms = 300 would be missed: the last token"):
        time_request(Deadlines(inf, 0.3, strict=True)).check()


class Group:
    """What is run: an argument of a `RequestGroup`."""

    def __init__(self, *given: Any) -> None:
        (admitted,) = [one for one in given if isinstance(one, AdmittedRequest)]
        self.prompts, self.notes = admitted.prompts, admitted.notes
        self.collectors = list[Any]()


def begin(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Any, HttpRequest]:
    """What a request with a deadline of 500 ms runs as, in a queue of 512 that has 256 requests."""
    monkeypatch.setattr(api_server, "RequestGroup", Group)
    monkeypatch.setattr(api_server, "MetricsPage", lambda *given: None)
    directory: Any = SimpleNamespace(entries=[])
    updates: Any = SimpleNamespace()
    server = api_server.ApiServer(ServerSettings(**settings), directory, ServerLog("text"), updates)
    server.queue.enter(256, 256)
    request = HttpRequest({"type": "http", "headers": [], "deadlines": Deadlines(0.5)})
    return server.begin(make_model(), [make_prompt()], request), request


def test_what_is_predicted_and_changed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    group, request = begin(monkeypatch, overload_steps="max_tokens=5,no_speculation")
    (prompt,) = group.prompts
    assert prompt.params.max_tokens == 5 and prompt.lane.start_by < inf
    assert group.notes["degraded"] == ["max_tokens=5"]
    later = group.notes["predicted_e2el_ms"] - group.notes["predicted_ttft_ms"]
    assert later == pytest.approx(40)
    headers = add_headers(request, reply({})).headers
    assert headers["x-flyweight-degraded"] == "max_tokens=5"
    assert headers["x-predicted-ttft-ms"] == f"{group.notes['predicted_ttft_ms']:.15g}"


def test_deadlines_order_nothing_where_priorities_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    group, _ = begin(monkeypatch, max_priority=0)
    assert group.prompts[0].lane.start_by == inf
    assert group.prompts[0].params.max_tokens == 11 and "degraded" not in group.notes


@pytest.mark.parametrize(
    ("deadlines", "first", "last", "gone", "outcome"),
    [
        (Deadlines(0.5, 1.0), 0.5, 1.0, 1.1, "met"),
        (Deadlines(0.5, 1.0), 0.6, 0.9, 1.1, "missed"),
        (Deadlines(0.5, 1.0), 0.4, 1.1, 1.1, "missed"),
        (Deadlines(0.5), 0.4, inf, 9.0, "met"),  # its client left later
        (Deadlines(0.5, 1.0), 0.4, inf, 0.7, ""),  # its client left before the second
        (Deadlines(0.5, 1.0), 0.4, inf, 1.1, "missed"),
        (Deadlines(0.5), inf, inf, 0.4, ""),
        (Deadlines(0.5), 0.4, inf, inf, "missed"),  # it failed
    ],
)
def test_outcomes(
    deadlines: Deadlines, first: float, last: float, gone: float, outcome: str
) -> None:
    assert judge(deadlines, first, last, gone) == outcome


def make_stream(*finish: Finish | None, last: float = 0.45) -> EngineStream:
    """Of a prompt whose first token came after 250 ms, and its last after 450 ms."""
    request = Request("r", (5,) * 100, SamplingParams(), max_tokens=11, arrival=ARRIVED)
    tokenizer = load_tokenizer(json.loads(VOCABULARY.read_text(encoding="utf-8")))
    collector = Collector(request, tokenizer, "x", lambda: ARRIVED + last)
    for reason in finish:
        times = Timings(ARRIVED, ARRIVED + 0.1, ARRIVED + 0.25, ARRIVED + 0.25)
        collector.feed(Event("r", 0, (5,), finish=reason, timings=times))
    return EngineStream(collector, asyncio.Event())


def end(timed: TimedRequest, *finish: Finish | None) -> None:
    timed.end([make_stream(*finish)])


@pytest.mark.parametrize(
    ("limit", "lasts", "outcome"),
    [
        (0.455, (0.43, 0.45), {"met": 1}),
        (0.44, (0.43, 0.45), {"missed": 1}),
        (0.5, (0.45, None), {}),  # its client left
    ],
)
def test_a_request_of_several_prompts_counts_once(
    limit: float, lasts: tuple[float | None, ...], outcome: dict[str, int]
) -> None:
    timed = time_request(Deadlines(0.3, limit))
    done = (None, Finish.LENGTH)
    timed.end([make_stream(*done, last=at) if at else make_stream(None) for at in lasts])
    counts = timed.model.counts.deadlines
    assert {name: count for name, count in counts.items() if count} == outcome


def test_what_ends_is_counted_and_learned_from() -> None:
    for deadlines, found in ((Deadlines(0.3, 0.5), "met"), (Deadlines(0.2), "missed")):
        timed = time_request(deadlines)
        end(timed, None, Finish.LENGTH)
        counts = timed.model.counts.deadlines
        assert {name for name, count in counts.items() if count} == {found}
        assert timed.model.latency.ttft.count == LEAST + 1
    timed = time_request(Deadlines(0.3, 0.5))
    end(timed, None)
    assert set(timed.model.counts.deadlines.values()) == {0}, "its client left"
    assert timed.model.latency.ttft.count == LEAST


def test_the_engine_learns_when_a_request_must_start() -> None:
    request = Request("r", (5,), SamplingParams(), start_by=7.5, drafted=False)
    assert Submit.of(request).to_request() == request
