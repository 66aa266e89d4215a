"""Answers nobody reads, and answers with much to tell: neither fills the front end with them."""

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight import LLM
from flyweight.requests.collector import Collector
from flyweight.server.admission.request_group import AdmittedRequest, RequestGroup
from flyweight.server.engine_client import EngineClient, EngineStream
from flyweight.server.pipe import EngineSetup, StepEvents
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.types import Request, SamplingParams
from http_server import served

MOST = 6  # tokens of a choice


class Under:
    """A bundle that is streamed, of requests for `n` choices each; what was left of it."""

    def __init__(self, prompts: int = 1, n: int = 1) -> None:
        self.streams: dict[str, EngineStream] = {}
        self.left: list[EngineStream] = []
        host: Any = SimpleNamespace(send=lambda number, message: None, add=lambda client: 0)
        self.client: Any = EngineClient(host, EngineSetup({}, 1.0))
        self.client.streams = self.streams
        model: Any = SimpleNamespace(
            settings=ServerSettings(request_timeout=60.0, max_stream_buffer_tokens=MOST),
            preparer=SimpleNamespace(
                make_collector=self._collector,
                make_id=map(str, count()).__next__,
                attempts=lambda *given: None,
            ),
            client=SimpleNamespace(submit=self._submit, leave=self.left.append),
            observer=SimpleNamespace(observe_end=lambda stream: None),
            hold=lambda: None,
            release=lambda: None,
        )
        queue: Any = SimpleNamespace(leave=lambda *given: None)
        place: Any = SimpleNamespace(requests=1, tokens=1)
        params = SamplingParams(n=n)
        requested: Any = SimpleNamespace(pooling=None, beam=None, params=params, tokens=(1,))
        now = asyncio.get_running_loop().time()
        admitted = AdmittedRequest([requested] * prompts, place, now)
        self.group = RequestGroup(model, queue, set(), admitted)
        self.group.limit_buffer()

    def _collector(self, requested: Any, id: str) -> Collector:
        request = Request(id, (5,), requested.params, max_tokens=99)
        return Collector(request, LLM().tokenizer, "x")

    def _submit(self, collector: Collector, news: asyncio.Event, key: Any) -> EngineStream:
        self.streams[collector.request.id] = stream = EngineStream(collector, news)
        return stream

    def feed(
        self, tokens: int, prompt: int = 0, choice: int = 0, finish: str | None = None
    ) -> None:
        news = StepEvents(str(prompt), choice, (7,) * tokens, finish=finish)
        EngineClient._feed(self.client, self.streams[str(prompt)], news)


def test_a_stream_far_ahead_of_its_reader_is_ended() -> None:
    async def work() -> None:
        under = Under()
        for _ in range(MOST):
            under.feed(1)
        assert not under.left
        under.feed(1)
        assert len(under.left) == 1
        with pytest.raises(HttpError, match="--max-stream-buffer-tokens") as caught:
            await anext(under.group.read_pieces())
        assert caught.value.status == 408 and caught.value.code == "slow_client"

    asyncio.run(work())


def test_a_reading_client_stays_connected() -> None:
    """However much there is to read."""

    async def work() -> None:
        under = Under()
        reading = under.group.read_pieces()
        for _ in range(5 * MOST):
            under.feed(MOST // 2)
            await anext(reading)
        assert not under.left

    asyncio.run(work())


def test_each_choice_may_be_as_far_ahead() -> None:
    async def work() -> None:
        under = Under(prompts=2, n=3)
        for prompt in range(2):
            for choice in range(3):
                under.feed(MOST, prompt, choice)
        assert not under.left
        under.feed(1, 1)
        assert len(under.left) == 2

    asyncio.run(work())


def test_the_end_of_an_answer_is_kept() -> None:
    """Nothing more comes: ending it would free nothing."""

    async def work() -> None:
        under = Under()
        under.feed(9 * MOST, finish="length")
        assert not under.left
        ((_, piece),) = await anext(under.group.read_pieces())
        assert len(piece.tokens) == 9 * MOST

    asyncio.run(work())


def test_the_logprobs_of_answers_are_bounded() -> None:
    with served({}, {"max_response_logprobs": 240}) as server:
        body = {"prompt": "Once", "max_tokens": 10, "n": 4}
        path = "/v1/completions"
        assert server.post(path, {**body, "logprobs": 5}).status == 200
        for more, name, found in (
            ({"logprobs": 6}, "logprobs", 280),
            ({"logprobs": 6, "stream": True}, "logprobs", 280),
            ({"logprobs": 1, "logprob_token_ids": [1, 2, 3, 4, 5, 6]}, "logprob_token_ids", 280),
            ({"logprobs": 5, "prompt": ["a", "b"]}, "logprobs", 480),
        ):
            got = server.post(path, {**body, **more})
            error = got.json["error"]
            assert got.status == 400 and error["param"] == name, got.body
            for word in (str(found), "0 to 240", "(n)", "max_tokens", "--max-response-logprobs"):
                assert word in error["message"]
        talk = {
            "messages": [{"role": "user", "content": "Hi"}],
            "logprobs": True,
            "top_logprobs": 6,
        }
        requested = {**talk, "max_tokens": 10, "n": 4}
        own = {"prompt": "Once", "n_predict": 10, "n_cmpl": 4, "n_probs": 6}
        for where, given, name in (
            ("/v1/chat/completions", requested, "top_logprobs"),
            ("/completion", own, "n_probs"),
        ):
            got = server.post(where, given)
            assert got.status == 400 and got.json["error"]["param"] == name, got.body
            assert got.json["error"]["message"].startswith(f"{name} = 6 may return 280 ")
            assert "--max-response-logprobs" in got.json["error"]["message"]
        assert server.post(path, {**body, "max_tokens": 400}).status == 200
