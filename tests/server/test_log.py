"""The log: what a line holds, and what it never does."""

import asyncio
import io
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request

from flyweight.engine.metrics import EngineMetrics
from flyweight.server.apis.openapi import ApiRoute
from flyweight.server.app import _endpoint
from flyweight.server.observability.counters import INTERVAL, ServerCounters, StepObserver
from flyweight.server.observability.log import QUEUE, ServerLog, format_line
from flyweight.server.pipe import Gauges, StepReport
from flyweight.server.transport.request_log import RequestRecord
from http_server import Running, started

EVIL = 'a\r\n2026-01-01 request x=1\x1b[31m\u2028\u202e\x00"é'


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_value_cannot_forge_a_line_or_move_a_terminal(form: str) -> None:
    text = format_line(form, 0.0, "request", {"path": EVIL, "status": 200, "no": None})
    assert text.count("\n") == 1 and text.endswith("\n")
    assert text.isascii() and text[:-1].isprintable()
    assert "no=" not in text and len(format_line(form, 0.0, "x", {"path": "a" * 9999})) < 400
    if form == "json":
        assert json.loads(text)["status"] == 200
    else:
        assert text.startswith("1970-01-01T00:00:00.000Z request path=a%0D%0A2026")


def test_unread_log_lines_are_counted_without_waiting() -> None:
    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            time.sleep(0.2)
            return super().write(text)

    log = ServerLog(to=Stuck())
    for i in range(QUEUE + 500):
        log.event("x", i=i)
    assert log.lost > 300
    log.close(0.0)


def test_what_was_said_is_written_before_the_end() -> None:
    to = io.StringIO()
    log = ServerLog(to=to)
    log.event("one", a=1)
    log.event("two", b="x y")
    log.close()
    assert [x.split(" ", 1)[1] for x in to.getvalue().splitlines()] == ["one a=1", 'two b="x y"']


def test_preemptions_are_logged_once_an_interval() -> None:
    now = 100.0
    said: list[dict[str, object]] = []

    class Says:
        def event(self, name: str, /, **facts: object) -> None:
            said.append({"name": name, **facts})

    watch = StepObserver(ServerCounters(100), dict, Says(), clock=lambda: now)
    totals = EngineMetrics()

    def step(preempted: int) -> None:
        totals.preempted += preempted
        gauges = Gauges(1, 1, 8, 0, replace(totals), 1, 0.1, 0.1)
        watch.observe_step(StepReport([], [], gauges))

    for preempted in (0, 1, 2, 0):
        step(preempted)
    assert [x["sequences"] for x in said] == [1]
    now += INTERVAL
    step(0)
    step(0)
    assert [(x["sequences"], x["total"]) for x in said] == [(1, 1), (2, 3)]


def reported(server: Running, word: str) -> str:
    """The newest line of the log with a word in it."""
    for _ in range(200):
        found = [text for text in server.said if word in text]
        if found:
            return found[-1]
        time.sleep(0.05)
    raise AssertionError(server.said)


def test_a_request_is_one_line_without_prompt_or_key() -> None:
    with started("--api-key", "sesame-key") as server:
        key = {"authorization": "Bearer sesame-key"}
        body = {"prompt": "Xylophones sing", "max_tokens": 5, "temperature": 0}
        server.ask("POST", "/v1/completions?key=sesame-key", body, key)
        text = reported(server, " request ")
        for part in (
            "method=POST",
            "path=/v1/completions ",
            "status=200",
            "tokens=5",
            " id=request-",
        ):
            assert part in text, text
        for part in ("prompt_tokens=", "cached_tokens=", "queue_ms=", "ttft_ms=", "seconds="):
            assert part in text, text
        server.ask("GET", "/nothing%0d%0astatus=200", None, {"x-api-key": "wrong-key"})
        assert "status=401" in reported(server, "path=/nothing%0D%0Astatus=200")
        line = server.connection()
        raw = b'{"prompt": "Xylophones", "max_tokens": 400, "ignore_eos": true, "stream": true}'
        line.request("POST", "/v1/completions", raw, {"content-type": "application/json", **key})
        line.getresponse().read(100)
        line.close()
        assert "tokens=" in reported(server, "client_disconnected=True")
        assert server.get("/metrics").status == 401
        for path in ("/metrics", "/v1/models"):  # polled: no line
            assert server.ask("GET", path, None, key).status == 200
        assert server.stop() == 0
        assert not [x for x in server.said for secret in ("Xylo", "sesame", "wrong") if secret in x]
        assert len([x for x in server.said if " request " in x]) == 4
        assert len([x for x in server.said if "path=/metrics status=401" in x]) == 1


def test_a_json_line_has_neither() -> None:
    words = "--api-key", "sesame-key", "--log-format", "json"
    with started(*words) as server:
        body = {"prompt": "Xylophones sing", "max_tokens": 5, "temperature": 0}
        server.ask("POST", "/v1/completions", body, {"authorization": "Bearer sesame-key"})
        server.ask("POST", "/v1/completions", body, {"authorization": "Bearer wrong-key"})
        found = [json.loads(reported(server, f'"status":{status}')) for status in (200, 401)]
        assert server.stop() == 0
        assert [one["event"] for one in found] == ["request", "request"]
        assert found[0]["path"] == "/v1/completions" and found[0]["tokens"] == 5
        assert not [x for x in server.said for secret in ("Xylo", "sesame", "wrong") if secret in x]


def test_a_line_has_the_ids_its_client_knows() -> None:
    named = {"x-request-id": "findme-1"}
    with started() as server:
        body = {"prompt": "One", "max_tokens": 2, "request_id": "mine-7"}
        for stream in (False, True):
            got = server.ask("POST", "/v1/completions", {**body, "stream": stream}, named)
            assert got.headers["x-request-id"] == "findme-1"
        line = reported(server, " request_id=findme-1 reply=")
        assert "reply=cmpl-mine-7 " in line and line.count("\n") == 1
        forged = {**body, "request_id": "x y\nforged"}
        assert server.post("/v1/completions", forged).status == 400
        assert " request " in reported(server, " status=400 ")
        assert not [text for text in server.said if "forged" in text]
        got = server.ask("POST", "/v1/embeddings", {"input": "One"}, named)
        assert f"reply={got.json['id']} " in reported(server, "path=/v1/embeddings")
        got = server.ask("GET", "/version", None, {"x-request-id": "no good"})
        assert f"request_id={got.headers['x-request-id']}\n" in reported(server, "path=/version")
        assert not any("no good" in text or "no%20good" in text for text in server.said)


def test_the_end_of_a_process_is_logged() -> None:
    faults = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "die:step=3"}
    with started(**faults) as server:
        assert server.post("/v1/completions", {"prompt": "One", "max_tokens": 9}).status == 503
        assert "requests=1" in reported(server, " engine_ended ")
        assert "restarts=1" in reported(server, " engine_ready ")
        page = server.get("/metrics").body.decode()
        assert 'flyweight:engine_restarts_total{engine="0",model_name="stories"} 1.0' in page
        assert 'finished_reason="error",model_name="stories"} 1.0' in page


def test_what_a_full_disk_did_not_take_is_dropped_at_the_end() -> None:
    """Python would end with 120 where its last flush fails."""
    with open("/dev/full", "w") as full:
        log = ServerLog(to=full)
        log.event("ready")
        log.close()
        full.write("more")
        full.flush()


def test_a_mistake_of_ours_is_noted_with_the_id_its_client_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def broken(server: Any, request: Any) -> Any:
        raise KeyError(request.scope["secret"])

    entry = ApiRoute("GET", "/broken", broken, "")
    visit = RequestRecord(0.0, id="findme-1")
    request = Request(
        {"type": "http", "record": visit, "headers": [], "path": "/broken", "secret": "xyzzy"}
    )
    server: Any = None
    got = asyncio.run(_endpoint(server, entry)(request))  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert got.status_code == 500 and "/broken findme-1 failed: KeyError" in said
    assert "xyzzy" not in said
