"""bench/soak.py: the fates of requests, the rules, and a short run."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from test_suite import BENCH, script

script("soak")  # finds its parts
from soak_parts import load, plot, record, rules, watch  # noqa: E402
from soak_parts.client import Outcome, SentRequest, send  # noqa: E402

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TEXT = b'data: {"choices":[{"text":"one"}]}\n\n'
DONE = b"data: [DONE]\n\n"
BROKEN = b'data: {"error":{"message":"x","code":"engine_down"}}\n\n'
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def sized(status: int, body: bytes) -> bytes:
    return f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


REFUSAL = sized(429, b'{"error":{"code":"queue_full"}}')


def exchange(
    reply: bytes, *, streamed: bool = False, leave_after: int = 0, leave_in: float = 0.0
) -> Outcome:
    """The outcome of a request that a server answers with these bytes."""
    body = {"stream": streamed}
    request = SentRequest("kind", "POST", "/x", body, "sk-1", leave_after, leave_in)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(json.dumps(body).encode())
        writer.write(reply)
        await writer.drain()
        writer.close()

    async def run() -> Outcome:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await send(server.sockets[0].getsockname()[1], request, lambda: 0.0)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "streamed", "expected"),
    [
        (sized(200, b"{}"), False, ("answered", "")),
        (sized(200, b"{}")[:-1], False, ("lost", "IncompleteReadError")),
        (REFUSAL, False, ("refused", "queue_full")),
        (REFUSAL, True, ("refused", "queue_full")),
        (sized(500, b"oops"), False, ("refused", "unknown")),
        (b"", False, ("lost", "IncompleteReadError")),
        (HEAD + chunk(TEXT) + chunk(DONE) + END, True, ("answered", "")),
        (HEAD + chunk(TEXT + DONE[:5]) + chunk(DONE[5:]) + END, True, ("answered", "")),
        (HEAD + chunk(TEXT) + END, True, ("lost", "no last event")),
        (HEAD + chunk(TEXT) + chunk(DONE)[:9], True, ("lost", "IncompleteReadError")),
        (HEAD + chunk(TEXT) + chunk(BROKEN) + chunk(DONE) + END, True, ("error", "engine_down")),
        (HEAD + chunk(TEXT) + chunk(BROKEN), True, ("error", "engine_down")),
        (b"HTTP/1.1 200 OK\r\n\r\n", False, ("lost", "ValueError")),
    ],
)
def test_every_answer_has_its_fate(reply: bytes, streamed: bool, expected: tuple[str, str]) -> None:
    outcome = exchange(reply, streamed=streamed)
    assert (outcome.fate, outcome.code) == expected


def test_a_stream_that_the_client_leaves_is_not_lost() -> None:
    outcome = exchange(HEAD + chunk(TEXT) + chunk(TEXT), streamed=True, leave_after=2)
    assert (outcome.fate, outcome.body) == ("left", TEXT + TEXT)


def test_a_request_may_be_left_before_its_answer() -> None:
    outcome = exchange(sized(200, b"{}"), leave_in=0.01)
    assert (outcome.fate, outcome.body) == ("left", b"")


def test_a_server_that_is_gone_loses_the_request() -> None:
    outcome = asyncio.run(send(1, SentRequest("kind", "GET", "/"), lambda: 0.0))
    assert outcome.fate == "lost"


def test_draws_repeat_and_fit_into_the_context() -> None:
    def draw(seed: int) -> list[Any]:
        source = Random(seed)
        return [load.draw_request(source, ("a", "b"), ("k",)) for _ in range(300)]

    assert draw(1) == draw(1) != draw(2)
    kinds = {request.kind for request, _ in draw(1)}
    assert kinds == {one.name for one in load.KINDS}
    assert {request.body["model"] for request, _ in draw(1)} == {"a", "b"}


def outcome(fate: str, status: int, code: str, began: float, ended: float) -> Outcome:
    return Outcome("chat", fate, status, code, began, ended)


DOWN = ("refused", 503, "engine_down")


@pytest.mark.parametrize(
    ("found", "unexpected"),
    [
        (outcome("answered", 200, "", 0, 1), False),
        (outcome("left", 200, "", 0, 1), False),
        (outcome("refused", 429, "queue_full", 0, 1), False),
        (outcome("refused", 400, "bad_value", 0, 1), True),
        (outcome("refused", 409, "model_busy", 0, 1), False),
        (outcome("lost", 200, "", 101, 102), True),
        (outcome(*DOWN, 0, 1), True),
        (outcome(*DOWN, 98, 101), False),
        (outcome("error", 200, "engine_down", 90, 101), False),
        (outcome("error", 200, "engine_error", 90, 101), True),
        (outcome("refused", 500, "internal_error", 90, 101), True),
        (outcome(*DOWN, 110 + record.GRACE, 140), False),
        (outcome(*DOWN, 111 + record.GRACE, 140), True),
    ],
)
def test_a_refusal_is_expected_while_the_engine_is_down(found: Outcome, unexpected: bool) -> None:
    kept = record.SoakRecord(3600)
    kept.downtimes.append(record.Downtime(100, 110))
    kept.add(found, ["model_busy"])
    assert kept.unexpected == ([found] if unexpected else [])


def take_samples(growth: Callable[[float], float]) -> list[dict[str, Any]]:
    """An hour, a sample in ten seconds; the engine has 100 MiB and what `growth` says."""
    found = []
    for time in range(0, 3600, 10):
        engine = {"rss": 100 * watch.MIB + growth(time), "pss": 0, "files": 20, "threads": 5}
        found.append({"time": time, "answered": time, "running": 1, "waiting": 0,
                      "loaded": ["small"], "server": {**engine, "rss": 50 * watch.MIB},
                      "engine": engine, "others": None})  # fmt: skip
    return found


def make_record(growth: Callable[[float], float] = lambda time: 0.0) -> record.SoakRecord:
    """A run in which every rule is kept, unless memory grows."""
    made = record.SoakRecord(3600)
    for kind, fate in (
        ("load", "answered"), ("unload", "answered"), ("aborted stream", "left"),
        ("aborted unload", "left"),
    ):  # fmt: skip
        made.add(Outcome(kind, fate, 200, "", 0, 1))
    made.downtimes.append(record.Downtime(1000, 1003))
    made.events = [(400.0, "disk full"), (1000.0, "engine killed")]
    made.canaries["small, greedy"] = record.Canary("small, greedy")
    for after in (False, True):
        made.canaries["small, greedy"].check("text", after_kill=after)
    made.samples = take_samples(growth)
    made.facts = {
        "idle": True,
        "exit_code": 0,
        "restarts": 1.0,
        "has_disk": True,
        "totals": {"a": 1},
    }
    return made


def broken(made: record.SoakRecord) -> list[str]:
    return [one.name for one in rules.judge_run(made) if one.kept is False]


def saw(time: float) -> float:
    """A cache that fills up in the first half, and a model that comes and goes every minute."""
    return min(time, 1500) * 1e5 + (10 * watch.MIB if time % 60 < 30 else 0)


def test_memory_that_comes_and_goes_is_flat_and_a_leak_is_not() -> None:
    assert broken(make_record()) == []
    assert broken(make_record(saw)) == []
    assert broken(make_record(lambda time: saw(time) + 16e6 * time / 3600)) == []
    assert broken(make_record(lambda time: saw(time) + 60e6 * time / 3600)) == [
        "growth of rss, engine, MiB"
    ]


def test_a_process_that_was_restarted_has_half_of_its_life_to_fill_its_caches() -> None:
    """The kill is at 1,003 of 3,600 seconds, so growth counts from 2,301 on."""
    filling = make_record(lambda time: 4e4 * min(max(0, time - 1003), 1290))
    assert broken(filling) == []
    filling.downtimes.clear()
    assert "growth of rss, engine, MiB" in broken(filling)


def test_growth_is_that_of_the_same_models() -> None:
    """More models at the end are no growth; what grows with each set of them is."""
    made = make_record()
    for one in made.samples:
        if one["time"] > 3000:
            one["loaded"] = ["large", "small"]
            one["engine"]["rss"] += 30 * watch.MIB
    assert "growth of rss, engine, MiB" not in broken(made)
    for one in made.samples:
        one["engine"]["rss"] += 20 * watch.MIB * one["time"] / 3600
    assert "growth of rss, engine, MiB" in broken(made)


def test_growth_of_a_trial_is_reported_and_not_judged() -> None:
    made = make_record(lambda time: 1e5 * time)
    made.seconds = 180
    assert broken(made) == []
    assert "not judged" in rules.make_report(made, rules.judge_run(made))


def test_each_rule_can_be_broken() -> None:
    lost = make_record()
    lost.add(outcome("lost", 200, "no last event", 0, 1))
    assert broken(lost) == ["lost requests", "unexpected refusals and errors"]
    changed = make_record()
    changed.canaries["small, greedy"].check("other", after_kill=True)
    assert broken(changed) == ["canary small, greedy"]
    for fact, value, rule in (
        ("idle", False, "blocks released at the end"),
        ("exit_code", 1, "exit code"),
        ("restarts", 2.0, "engine restarts"),
        ("page", {"trouble": "x"}, "page"),
    ):
        made = make_record()
        made.facts[fact] = value
        assert broken(made) == [rule]
    whole = make_record()
    whole.events = []
    whole.fates.clear()
    whole.canaries["small, greedy"] = record.Canary("small, greedy")
    whole.downtimes[0].end = None
    assert broken(whole) == [
        "canaries of each model after the kill", "disk full once", "loads by the operator",
        "unloads", "aborted streams", "aborted unloads", "engine restarts",
    ]  # fmt: skip


def test_a_run_is_written_as_a_table_a_document_and_a_plot() -> None:
    made = make_record()
    judged = rules.judge_run(made)
    report = rules.make_report(made, judged)
    lines = [line.split() for line in report.splitlines()]
    assert ["load", "1", "0", "0", "0", "0"] in lines
    assert ["all", "2", "0", "0", "2", "0"] in lines
    assert "BROKEN" not in report
    document = json.loads(json.dumps(rules.make_document(made, judged)))
    assert document["requests"]["aborted stream"] == {"left": 1}
    assert len(document["samples"]) == 360
    drawn = plot.draw_soak(made.samples, made.events)
    texts = [one.text for one in ElementTree.fromstring(drawn).iter() if one.text]
    assert {"engine killed", "disk full", "answers per second", "minutes"} <= set(texts)


@pytest.mark.long
def test_a_short_soak_keeps_its_rules(data: Callable[[str], Path], tmp_path: Path) -> None:
    for name in ("stories260k/stories260K-f32.gguf", "stories3m/stories3M-q80.bin"):
        data(name)
    results, drawn = tmp_path / "soak.json", tmp_path / "soak.svg"
    ended = subprocess.run(
        [sys.executable, str(BENCH / "soak.py"), "--minutes", "1", "--results", str(results),
         "--plot", str(drawn)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads(results.read_text())
    assert [one["rule"] for one in document["rules"] if one["kept"] is False] == []
    assert document["requests"]["canary"]["answered"] > 0
    ElementTree.parse(drawn)
