"""Streams with much to tell: written in turns, nothing twice, nothing lost, within a bound."""

import asyncio
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight import LLM
from flyweight.requests.collector import Collector, TextPiece
from flyweight.server.admission.request_group import AdmittedRequest, RequestGroup
from flyweight.server.api_server import ApiServer
from flyweight.server.apis import answer as answers
from flyweight.server.apis import logprobs as scores
from flyweight.server.apis.usage import RunningUsage, count_usage
from flyweight.server.engine_client import EngineStream
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.types import Event, Finish, Request, SamplingParams, TokenLogprobs
from http_server import Running, served

SCORED = TokenLogprobs(-1.0, 1, (5, 6), (-1.0, -2.0))
LONG = "a b c d e f g " * 30


def collector(n: int = 1, prompt: int = 2, **more: Any) -> Collector:
    params = SamplingParams(n=n, logprobs=2, **more)
    return Collector(Request("r", (5,) * prompt, params, max_tokens=9), LLM().tokenizer, "x")


def feed(stream: EngineStream, *events: Event) -> None:
    for event in events:
        stream.collector.feed(event)
    stream.over = stream.collector.finished
    stream.news.set()


class Under:
    """A bundle of one request under way, and its stream."""

    def __init__(self, own: Collector, waited: float = 0.0, loading: float = 0.0) -> None:
        def submit(collector: Collector, news: asyncio.Event, key: Any) -> EngineStream:
            self.stream = EngineStream(collector, news)
            return self.stream

        model: Any = SimpleNamespace(
            settings=ServerSettings(request_timeout=60.0, queue_timeout=5.0),
            preparer=SimpleNamespace(
                make_collector=lambda requested, id: own,
                make_id=lambda: "r",
                attempts=lambda *given: None,
            ),
            client=SimpleNamespace(submit=submit, leave=lambda stream: None),
            observer=SimpleNamespace(observe_end=lambda stream: None),
            hold=lambda: None,
            release=lambda: None,
        )
        late = HttpError(429, "not started", code="queue_timeout")
        queue: Any = SimpleNamespace(leave=lambda *given: None, make_timeout_error=lambda: late)
        place: Any = SimpleNamespace(requests=1, tokens=1)
        requested: Any = SimpleNamespace(pooling=None, beam=None, params=own.requested, tokens=(1,))
        server: Any = SimpleNamespace(_writers=ThreadPoolExecutor(1))
        server.write_in_thread = lambda work: ApiServer.write_in_thread(server, work)
        self.server, now = server, asyncio.get_running_loop().time()
        admitted = AdmittedRequest([requested], place, now - waited, loading)
        self.group = RequestGroup(model, queue, set(), admitted)


class Told:
    """A writer of so many bytes a piece; it notes which."""

    media, id = "text/event-stream", ""

    def __init__(self, size: int, then: Any = lambda: None) -> None:
        self.size, self.then = size, then
        self.pieces: list[TextPiece] = []

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        self.pieces.append(piece)
        self.then()
        return b"x" * self.size

    def begin(self) -> bytes:
        return b""

    end = begin

    def write_reply(self) -> Any: ...
    def write_error(self, error: Any) -> bytes:
        raise error


async def parts(under: Under, writer: Any) -> list[bytes]:
    return [one async for one in answers._write_parts(under.server, under.group, writer, "")]


def test_a_load_does_not_count_as_waiting_in_the_queue() -> None:
    async def work(loading: float) -> str:
        under = Under(collector(), waited=10.0, loading=loading)
        await asyncio.sleep(0.01)
        error, _ = under.group._error, under.group.close()
        return "" if error is None else error.code

    assert asyncio.run(work(0.0)) == "queue_timeout"
    assert asyncio.run(work(8.0)) == ""


def test_tokens_that_arrive_during_a_write_are_sent_too() -> None:
    """A slow reader, a thread that writes and others' turns all delay the writer."""

    async def work() -> None:
        under = Under(collector())
        feed(under.stream, Event("r", 0, (5,), (SCORED,)))
        reported: list[int] = []
        async for found in under.group.read_pieces():
            reported += [token for _, piece in found for token in piece.tokens]
            if len(reported) == 1:
                feed(under.stream, Event("r", 0, (6, 7), (SCORED,) * 2, finish=Finish.LENGTH))
        assert reported == [5, 6, 7]

    asyncio.run(work())


def test_many_choices_are_written_in_turns() -> None:
    async def work() -> None:
        under = Under(collector(n=32))
        others: list[int] = []
        writer = Told(answers.TURN // 4)

        async def other() -> None:
            while True:
                others.append(len(writer.pieces))
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        events = [Event("r", i, (5,), (SCORED,), finish=Finish.LENGTH) for i in range(32)]
        feed(under.stream, *events)
        got = await parts(under, writer)
        task.cancel()
        assert max(map(len, got)) <= answers.TURN and len(writer.pieces) == 32
        gaps = [b - a for a, b in itertools.pairwise(others)]
        assert max(gaps) <= 4, "others waited longer than a turn"
        under.server._writers.shutdown()

    asyncio.run(work())


@pytest.mark.parametrize("tokens, prompt, aside", [(2, 2, False), (2, 999, True), (999, 2, True)])
def test_a_large_piece_is_written_on_a_thread(tokens: int, prompt: int, aside: bool) -> None:
    async def work() -> None:
        import threading

        under = Under(collector(prompt=prompt, prompt_logprobs=2))
        threads: list[int] = []
        writer = Told(1, lambda: threads.append(threading.get_ident()))
        feed(under.stream, Event("r", 0, (5,) * tokens, (SCORED,) * tokens, finish=Finish.LENGTH))
        await parts(under, writer)
        assert (threads != [threading.get_ident()]) is aside
        under.server._writers.shutdown()

    asyncio.run(work())


def test_log_probabilities_of_a_piece_are_made_when_they_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = collector()
    own.feed(Event("r", 0, (5, 6), (SCORED,) * 2))
    whole = own.output().outputs[0].logprobs
    spelled: list[int] = []
    spell = Collector._decode_token
    monkeypatch.setattr(
        Collector, "_decode_token", lambda c, id: spelled.append(id) or spell(c, id)
    )
    (first,) = own.take_pieces()
    own.feed(Event("r", 0, (7,), (SCORED,), finish=Finish.LENGTH))
    (second,) = own.take_pieces()
    assert not spelled and first.logprobs is not None and second.logprobs is not None
    assert list(first.logprobs) == list(whole or ()) and spelled
    assert [next(iter(entry)) for entry in second.logprobs] == [7] and len(second.logprobs) == 1


def test_running_usage_is_usage_at_the_end_and_looks_at_no_other_prompt() -> None:
    many = [collector() for _ in range(5)]
    running = RunningUsage(many)
    for i, one in enumerate(many):
        one.feed(Event("r", 0, (5, 6), (SCORED,) * 2, finish=Finish.LENGTH, cached=i))
        running.collectors = [one] * 5  # the others are out of its reach
        for piece in one.take_pieces():
            running.note(i, piece)
    assert running.report() == count_usage(many)


def test_a_prompt_is_written_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    prompt_scores = Collector.read_prompt_logprobs
    monkeypatch.setattr(
        Collector, "read_prompt_logprobs", lambda c: made.append(1) or prompt_scores(c)
    )
    own = collector(n=8, prompt=300, prompt_logprobs=2, echo=True)
    own.feed(Event("r", 0, (5,), (SCORED,), prompt_logprobs=(SCORED,) * 299))
    prompt = scores.PromptScores(own, 2, scores.TokenSpelling(LLM().tokenizer))
    reported = [scores.TextScores(own, prompt).write([]) for _ in range(8)]
    assert len({bytes(one["top_logprobs"]) for one in reported}) == 1 and len(made) == 1
    assert len(json.loads(bytes(reported[0]["tokens"]))) == 300
    assert (
        len(json.loads(bytes(prompt.prompt_logprobs))) == 300
        and prompt.prompt_logprobs is prompt.prompt_logprobs
    )


@pytest.mark.parametrize("more", [{"prompt_logprobs": 5}, {"echo": True, "logprobs": 5}])
def test_streams_have_what_whole_replies_have(server: Running, more: dict[str, Any]) -> None:
    body = {"prompt": [LONG, "Once"], "n": 6, "max_tokens": 3, "seed": 4, **more}
    whole = server.post("/v1/completions", body).json["choices"]
    reported: dict[int, dict[str, Any]] = {}
    for event in server.post("/v1/completions", {**body, "stream": True}).events:
        for one in event["choices"]:
            known = reported.setdefault(one["index"], {"text": "", "tokens": [], "top": []})
            known["text"] += one["text"]
            known["tokens"] += (one["logprobs"] or {}).get("tokens", [])
            known["top"] += (one["logprobs"] or {}).get("top_logprobs", [])
            known |= {"own": one["prompt_logprobs"]} if "prompt_logprobs" in one else {}
    assert sorted(reported) == list(range(12))
    for choice in whole:
        one, found = reported[choice["index"]], choice["logprobs"] or {}
        assert one["text"] == choice["text"] and one["tokens"] == found.get("tokens", [])
        assert one["top"] == found.get("top_logprobs", [])
        assert one.get("own") == choice.get("prompt_logprobs")


def test_prompt_logprobs_of_a_response_are_bounded() -> None:
    with served({}, {"max_response_prompt_logprobs": 2000}) as server:
        tokens = server.post("/tokenize", {"prompt": LONG}).json["count"]
        body = {"prompt": LONG, "max_tokens": 1}
        fits = 2000 // (tokens * 3)
        assert fits > 1
        for more, name in (
            ({"prompt_logprobs": 2}, "prompt_logprobs"),
            ({"echo": True, "logprobs": 2}, "logprobs"),
        ):
            good = server.post("/v1/completions", {**body, **more, "n": fits})
            assert good.status == 200, good.body
            bad = server.post("/v1/completions", {**body, **more, "n": fits + 1})
            assert bad.status == 400 and bad.json["error"]["param"] == name
            found = (fits + 1) * tokens * 3
            for word in (str(found), "0 to 2000", "(n)", "--max-response-prompt-logprobs"):
                assert word in bad.json["error"]["message"]
            twice = {**more, "prompt_logprobs": 2, "echo": True, "logprobs": 2}
            assert server.post("/v1/completions", {**body, **twice, "n": fits}).status == 400
        talk = {"messages": [{"role": "user", "content": LONG}], "n": fits + 1, "max_tokens": 1}
        reported_once = server.post("/v1/chat/completions", {**talk, "prompt_logprobs": 2})
        assert reported_once.status == 200, reported_once.body
