"""Large replies: written away from the event loop, in pieces, and the same bytes."""

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight import LLM
from flyweight.requests.collector import Collector
from flyweight.server.api_server import ApiServer
from flyweight.server.apis import logprobs as scores
from flyweight.server.apis.answer import LARGE, answer
from flyweight.server.transport.replies import encode
from flyweight.types import Event, Finish, Request, SamplingParams, TokenLogprobs


def collected(tokens: int) -> Collector:
    """One whose answer has come."""
    tokenizer = LLM().tokenizer
    request = Request("r", (1, 2), SamplingParams(logprobs=2), max_tokens=tokens)
    found = Collector(request, tokenizer, "x")
    scored = TokenLogprobs(-1.0, 1, (5, 6), (-1.0, -2.0))
    found.feed(Event("r", 0, (5,) * tokens, (scored,) * tokens, finish=Finish.LENGTH))
    return found


class Whole:
    """A writer that notes where it writes."""

    id = ""

    def __init__(self) -> None:
        self.thread = 0

    def write_reply(self) -> Any:
        self.thread = threading.get_ident()
        return {"written": True}


class Bundle:
    """One that has everything."""

    def __init__(self, collector: Collector) -> None:
        self.collectors = [collector]

    async def wait_for_all(self) -> None: ...
    def __enter__(self) -> "Bundle":
        return self

    def __exit__(self, *gone: object) -> None: ...


@pytest.mark.parametrize("tokens, aside", [(2, False), (LARGE, True)])
def test_a_large_reply_is_written_aside(tokens: int, aside: bool) -> None:
    async def work() -> None:
        from concurrent.futures import ThreadPoolExecutor

        server: Any = SimpleNamespace(begin=lambda *given, stream: Bundle(collected(tokens)))
        server._writers = ThreadPoolExecutor(1)
        server.write_in_thread = lambda work: ApiServer.write_in_thread(server, work)
        model: Any = None
        request: Any = SimpleNamespace(state=None, scope={}, receive=asyncio.Event().wait)
        writer: Any = Whole()
        got = await answer(server, model, request, [], lambda group: writer, stream=False)
        assert got.body == b'{"written":true}'
        assert (writer.thread != threading.get_ident()) is aside
        server._writers.shutdown()

    asyncio.run(work())


def test_text_is_not_made_while_events_come() -> None:
    (choice,) = collected(500).choices
    assert len(choice.unread) == 500 and choice.closing


def test_no_call_encodes_much(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(value: Any) -> bytes:
        sizes.append(len(value))
        return encode(value)

    monkeypatch.setattr(scores, "encode", noted)
    spelling = scores.TokenSpelling(LLM().tokenizer)
    many = 10 * scores.RUN + 3
    logprobs = collected(many).output().outputs[0].logprobs
    assert logprobs is not None
    plain = [encode(scores._make_position(entry, 2, spelling)) for entry in logprobs]
    sizes.clear()
    chat = encode(scores.encode_chat_scores(logprobs, 2, spelling))
    assert chat == b'{"content":[' + b",".join(plain) + b'],"refusal":null}'
    long = collected(many)
    text = scores.TextScores(long, scores.PromptScores(long, 2, spelling)).write(logprobs)
    assert len(json.loads(encode(text))["top_logprobs"]) == many
    assert len(json.loads(encode(scores.encode_token_scores(logprobs, spelling)))) == many
    assert json.loads(encode(scores.encode_chat_scores([], 2, spelling))) == {
        "content": [],
        "refusal": None,
    }
    assert max(sizes) == scores.RUN
