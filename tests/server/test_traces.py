"""OpenTelemetry traces: stages that add up to their request, and a collector that may be away."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flyweight.errors import ConfigError
from flyweight.requests.collector import Collector, VectorCollector
from flyweight.server.lifecycle import start
from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.spans import RequestTrace, describe_request, divide
from flyweight.server.observability.tracing import (
    ReportingExporter,
    RequestTracer,
    complete,
    open_tracer,
)
from flyweight.server.settings import ServerSettings
from flyweight.types import Event, Finish, Request, SamplingParams, Timings
from http_server import Running, started
from otlp_collector import STAGES, Inbox

ALL = ["llm_request", *STAGES]
PARENT = "cd" * 8
NOBODY: Any = None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Silent:
    """A detokenizer that writes nothing."""

    stopped = None

    def push(self, tokens: list[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class Mute(Collector):
    """Gathers without a vocabulary."""

    def make_detokenizer(self) -> Any:
        return Silent()


def answered(*times: float, finish: Finish = Finish.LENGTH) -> Mute:
    """A prompt that arrived at 100.25 and ran from 100.5 on, with a token at each time."""
    clock = Clock()
    params = SamplingParams(temperature=0.5, top_p=0.75)
    request = Request("r", (1, 2, 3), params, max_tokens=9, arrival=100.25)
    found = Mute(request, NOBODY, None, clock)
    for i, at in enumerate(times):
        clock.now = at
        timings = None if i else Timings(100.25, 100.5, at, at)
        last = finish if i == len(times) - 1 else None
        found.feed(Event("r", 0, (5,), finish=last, cached=2, timings=timings))
    return found


def vector() -> VectorCollector:
    request = Request("v", (1, 2), SamplingParams(), max_tokens=0, arrival=100.25)
    clock = Clock()
    found = VectorCollector(request, None, (1, 2), clock)
    clock.now = 101.0
    found.feed(Event("v", 0, (), timings=Timings(100.25, 100.5, 101.0, 101.0)))
    return found


def traced(
    *collectors: Collector | VectorCollector,
    prepared: float = 100.25,
    began: float = 0.0,
    ended: float = 103.0,
    status: int = 200,
    whole: bool = True,
    context: dict[str, str] | None = None,
) -> RequestTrace:
    """A chat from 100 to 103."""
    return RequestTrace(
        "POST", "/v1/chat/completions", status, whole, 100.0, prepared, began, ended, "stories",
        "mine-1", "chatcmpl-1", collectors, context or {},
    )  # fmt: skip


def bounds(trace: RequestTrace) -> list[tuple[str, float, float]]:
    return [(name, began / 1e9, ended / 1e9) for name, began, ended in divide(trace, 0)]


def test_stages_follow_one_another_to_the_end() -> None:
    assert bounds(traced(answered(101.0, 102.0))) == [
        ("llm_request", 100.0, 103.0), ("tokenize", 100.0, 100.25), ("queue", 100.25, 100.5),
        ("prefill", 100.5, 101.0), ("decode", 101.0, 102.0), ("detokenize", 102.0, 103.0),
    ]  # fmt: skip


def test_the_load_of_a_model_is_a_stage_of_its_own() -> None:
    trace = replace(traced(answered(101.0, 102.0), prepared=100.25), loading=0.125)
    assert bounds(trace) == [
        ("llm_request", 100.0, 103.0), ("load", 100.0, 100.125), ("tokenize", 100.125, 100.25),
        ("queue", 100.25, 100.5), ("prefill", 100.5, 101.0), ("decode", 101.0, 102.0),
        ("detokenize", 102.0, 103.0),
    ]  # fmt: skip


def test_a_request_that_joined_another_late_was_decoded() -> None:
    clock = Clock()
    clock.now = 102.0
    joined = Mute(answered().request, NOBODY, None, clock)
    timings = Timings(100.25, 100.25, 100.25, 102.0)  # as it arrived after all of them
    joined.feed(Event("r", 0, (5,), finish=Finish.LENGTH, cached=2, timings=timings))
    assert bounds(traced(joined)) == [
        ("llm_request", 100.0, 103.0), ("tokenize", 100.0, 100.25), ("queue", 100.25, 100.25),
        ("prefill", 100.25, 100.25), ("decode", 100.25, 102.0), ("detokenize", 102.0, 103.0),
    ]  # fmt: skip


def test_stages_of_several_prompts_are_those_of_the_whole_reply() -> None:
    both = traced(answered(102.0), answered(101.0))
    found = {name: (began, ended) for name, began, ended in bounds(both)}
    assert found["prefill"] == (100.5, 101.0) and found["decode"] == (101.0, 102.0)


def test_a_vector_is_not_decoded() -> None:
    assert bounds(traced(vector()))[1:] == [
        ("tokenize", 100.0, 100.25), ("queue", 100.25, 100.5), ("prefill", 100.5, 101.0),
        ("detokenize", 101.0, 103.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("began", "names"), [(0.0, ALL[1:3]), (100.5, ALL[1:4])], ids=["waiting", "computing"]
)
def test_the_last_stage_of_what_was_cut_off_lasts_to_the_end(
    began: float, names: list[str]
) -> None:
    stages = bounds(traced(answered(), began=began, ended=104.0, status=499, whole=False))
    assert [name for name, *_ in stages[1:]] == names and stages[-1][2] == 104.0


def test_a_request_that_ran_no_prompt_has_no_stages() -> None:
    assert bounds(traced(prepared=0.0, status=400)) == [("llm_request", 100.0, 103.0)]


def test_a_clock_that_disagrees_makes_no_gap_and_no_overlap() -> None:
    """A token's time after the end, as where its client disconnected before it was read."""
    stages = bounds(traced(answered(101.0, 102.0), ended=100.75))
    assert [end for _, _, end in stages[1:-1]] == [begin for _, begin, _ in stages[2:]]
    assert stages[1][1] == 100.0 and stages[-1][2] == 100.75


def test_attributes_have_the_names_of_opentelemetry_and_vllm() -> None:
    trace = traced(answered(101.0, 102.0))
    assert describe_request(trace, divide(trace, 0)) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.request.id": "mine-1",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "flyweight",
        "gen_ai.request.model": "stories",
        "gen_ai.response.model": "stories",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.n": 1,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.latency.e2e": 3.0,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 1.0,
        "gen_ai.latency.time_in_model_inference": 1.5,
    }


@pytest.mark.parametrize(
    ("status", "whole", "error"),
    [(200, True, None), (404, True, None), (503, True, "503"), (200, False, "client_disconnected")],
)
def test_errors_are_those_of_the_server_and_of_clients_that_left(
    status: int, whole: bool, error: str | None
) -> None:
    trace = traced(status=status, whole=whole, prepared=0.0)
    assert describe_request(trace, divide(trace, 0)).get("error.type") == error


# --- without the option, and without the packages ---


def test_nothing_is_imported_without_the_option() -> None:
    assert open_tracer(ServerSettings(), ServerLog()) is None
    program = "import sys, flyweight.server.lifecycle.lifecycle; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    assert "flyweight.server.observability.tracing" in loaded
    assert [name for name in loaded if name.startswith("opentelemetry")] == []


def test_missing_packages_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(start, "find_spec", absent)
    start.check_trace_packages(ServerSettings())
    wanted = ServerSettings(otlp_traces_endpoint="http://localhost:4318")
    with pytest.raises(ConfigError) as caught:
        start.check_trace_packages(wanted)
    assert str(caught.value) == (
        "--otlp-traces-endpoint needs OpenTelemetry's SDK and its exporter; "
        "pip install 'flyweight[otel]'"
    )


@pytest.mark.parametrize(
    "text",
    ["x", "grpc://localhost:4317", "http://", "http://key@host/v1/traces", "http://h/?key=1"],
)
def test_wrong_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="nearest valid: http://localhost:4318/v1/traces"):
        ServerSettings(otlp_traces_endpoint=text)


def test_an_endpoint_without_a_path_gets_the_usual_one() -> None:
    assert complete("http://a:4318") == complete("http://a:4318/") == "http://a:4318/v1/traces"
    assert complete("https://a/own/path") == "https://a/own/path"


# --- with the packages ---


def test_a_trace_continues_that_of_its_client() -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    tracer = RequestTracer(kept, ServerLog())
    caller = {"traceparent": f"00-{'ab' * 16}-{PARENT}-01"}
    tracer.send(traced(answered(101.0, 102.0), context=caller))
    tracer.send(traced(answered(101.0, 102.0), context={"traceparent": "nonsense"}))
    tracer.send(traced(prepared=0.0, context={"traceparent": f"00-{'ef' * 16}-{PARENT}-00"}))
    tracer.close()
    spans = kept.get_finished_spans()
    assert len(spans) == 12, "the third is of a trace that its client does not record"
    own = [s for s in spans if s.context.trace_id == int("ab" * 16, 16)]
    (root,) = [s for s in own if s.name == "llm_request"]
    assert root.parent is not None and root.parent.span_id == int(PARENT, 16)
    stages = sorted((s for s in own if s is not root), key=lambda s: ALL.index(s.name))
    assert [s.name for s in stages] == ALL[1:]
    assert {s.parent.span_id for s in stages if s.parent} == {root.context.span_id}
    assert [s.end_time for s in stages[:-1]] == [s.start_time for s in stages[1:]]
    lasted = [(s.end_time or 0) - (s.start_time or 0) for s in (root, *stages)]
    assert lasted[0] == sum(lasted[1:]) == 3_000_000_000
    (other,) = [s for s in spans if s.name == "llm_request" and s not in own]
    assert other.parent is None


def test_a_mistake_in_a_trace_fails_no_request() -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    lines = io.StringIO()
    log = ServerLog("json", lines)
    tracer = RequestTracer(InMemorySpanExporter(), log)
    for _ in range(2):
        tracer.send(NOBODY)
    tracer.close()
    log.close()
    (line,) = lines.getvalue().splitlines()
    assert json.loads(line)["event"] == "traces_lost"


def test_a_collector_that_is_away_is_logged_once() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    bad, good = export.SpanExportResult.FAILURE, export.SpanExportResult.SUCCESS
    results = [bad, bad, OSError("away"), good, bad]
    lines = io.StringIO()
    log = ServerLog("json", lines)

    class Failing:
        """An exporter with these results."""

        def export(self, spans: Sequence[Any]) -> Any:
            found = results.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

    sender = ReportingExporter(Failing(), log)  # type: ignore[arg-type]
    assert [sender.export([1, 2]) for _ in range(5)] == [bad, bad, bad, good, bad]
    log.close()
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(one["event"], one["spans"]) for one in told] == [("traces_lost", 2)] * 2


@pytest.fixture(scope="module")
def inbox() -> Iterator[Inbox]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    made = Inbox()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def tracing(inbox: Inbox) -> Iterator[Running]:
    words = ("--otlp-traces-endpoint", inbox.url, "--api-key", "sesame")
    with started(*words, OTEL_BSP_SCHEDULE_DELAY="50", OTEL_SERVICE_NAME="owls") as server:
        yield server


def post(server: Running, number: int, path: str, body: dict[str, Any]) -> int:
    """Sends a request of trace `number`."""
    parent = f"00-{number:032x}-{PARENT}-01"
    headers = {"traceparent": parent, "authorization": "Bearer sesame"}
    return server.ask("POST", path, body, headers).status


def values(span: Any) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind)
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_spans_reach_the_collector(tracing: Running, inbox: Inbox, stream: bool) -> None:
    body = {"prompt": "Xylo went home", "max_tokens": 4, "ignore_eos": True, "stream": stream}
    number = 1 + stream
    assert post(tracing, number, "/v1/completions", body) == 200
    root, *stages = inbox.trace(number, 6)
    assert [s.name for s in (root, *stages)] == ALL
    assert root.parent_span_id.hex() == PARENT
    assert {s.parent_span_id for s in stages} == {root.span_id}
    assert stages[0].start_time_unix_nano == root.start_time_unix_nano
    assert [s.end_time_unix_nano for s in stages[:-1]] == [
        s.start_time_unix_nano for s in stages[1:]
    ]
    assert stages[-1].end_time_unix_nano == root.end_time_unix_nano
    found = values(root)
    assert found["gen_ai.request.model"] == "stories"
    assert found["gen_ai.usage.output_tokens"] == 4 and found["gen_ai.request.max_tokens"] == 4
    assert found["gen_ai.operation.name"] == "text_completion"
    latency = stages[2].end_time_unix_nano - root.start_time_unix_nano
    assert found["gen_ai.latency.time_to_first_token"] == latency / 1e9
    assert inbox.paths == {"/v1/traces"} and b"owls" in inbox.raw
    assert b"Xylo" not in inbox.raw and b"sesame" not in inbox.raw


def test_requests_without_a_model_make_no_spans_or_no_stages(
    tracing: Running, inbox: Inbox
) -> None:
    for path in ("/health", "/metrics", "/nothing"):
        tracing.get(path, authorization="Bearer sesame")
    assert post(tracing, 3, "/v1/completions", {"prompt": 5, "max_tokens": 0.5}) == 400
    (refused,) = inbox.trace(3, 1)
    assert values(refused)["http.response.status_code"] == 400
    assert post(tracing, 4, "/v1/embeddings", {"input": "An owl"}) == 200
    root, *stages = inbox.trace(4, 5)
    assert [s.name for s in stages] == ["tokenize", "queue", "prefill", "detokenize"]
    assert values(root)["gen_ai.operation.name"] == "embeddings"
    routes = {values(s)["http.route"] for s in inbox.spans if s.name == "llm_request"}
    assert routes <= {"/v1/completions", "/v1/embeddings"}
    assert len([s for s in inbox.spans if s.trace_id == refused.trace_id]) == 1


def test_a_server_answers_while_its_collector_is_away() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    words = ("--otlp-traces-endpoint", "http://127.0.0.1:9")  # where nothing listens
    short = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1"}
    with started(*words, **short) as server:
        body = {"prompt": "Once", "max_tokens": 2}
        assert server.post("/v1/completions", body).status == 200
        server.until(lambda: any(" traces_lost " in line for line in server.said))
        assert server.post("/v1/completions", body).status == 200
        assert server.stop() == 0
        assert len([line for line in server.said if " traces_lost " in line]) == 1
        assert not [line for line in server.said if "Traceback" in line or "opentel" in line]
