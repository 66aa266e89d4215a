"""What a load reads off the wire: events however they are cut, refusals, streams that break."""

import asyncio
import ssl
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sse_server import (
    DONE,
    DROP,
    Fake,
    Step,
    Until,
    data,
    delta,
    page,
    serving,
    stream,
    text,
    usage,
    words,
)

from flyweight.bench.serving.client_apis import CompletionsApi, find_api, read_reason
from flyweight.bench.serving.connection import ConnectionPool, ResponseReader, ServerAddress
from flyweight.bench.serving.load import LoadResult, RequestSchedule, Target, play, wait_until_ready
from flyweight.bench.serving.requests import LoadRequest, RequestManner, StreamedAnswer
from flyweight.errors import ConfigError

ASK = LoadRequest([1, 2, 3], 3, 4)


def played(
    fake: Fake, asks: Sequence[LoadRequest], backend: str = "openai", most: int | None = None
) -> LoadResult:
    target = Target(ServerAddress.of(fake.url), find_api(backend), RequestManner(("fake",)))
    load = RequestSchedule(asks, [ask.at for ask in asks], most)
    return asyncio.run(play(target, load, lambda done, total: None))


def one(*steps: Step, backend: str = "openai") -> StreamedAnswer:
    with serving(lambda body: steps) as fake:
        return played(fake, [ASK], backend).answers[0]


def reading(parts: Sequence[bytes], backend: str = "openai") -> StreamedAnswer:
    """Parts of a body, a second from each to the next."""
    found = ResponseReader(find_api(backend), StreamedAnswer())
    found.status, found.events = 200, True
    for second, part in enumerate(parts):
        found.take(part, float(second))
    found.finish()
    return found.answer


BODY = text(" a") + text(" é") + text("") + text("", "length") + usage(3, 4) + DONE


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
@settings(deadline=None)
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    got = reading([BODY[a:b] for a, b in pairwise(edges)])
    assert got.ok and got.text == " a é" and len(got.times) == 3
    assert (got.prompt_counted, got.counted, got.tokens) == (3, 4, 4)
    # a chunk came when its last byte did
    ends = [BODY.find(b"\n", BODY.find(word)) + 1 for word in (b'" a"', b'" \\u00e9"')]
    first = [next(i for i, edge in enumerate(edges[1:]) if edge >= end) for end in ends]
    assert [*got.times][:2] == first


def test_lines_may_end_as_on_a_typewriter_and_comments_are_passed_over() -> None:
    got = reading([b": ping\r\n\r\nevent: x\r\n", text("a").replace(b"\n", b"\r\n"), DONE])
    assert got.ok and got.text == "a"


def test_a_chats_opening_and_closing_are_no_tokens() -> None:
    got = reading(
        [
            delta(role="assistant", content=""),
            delta(reasoning="so"),
            delta(reasoning_content="..."),
            delta(content="Hi"),
            delta(content=""),
            delta(tool_calls=[{"index": 0}]),
            delta("stop"),
            usage(9, 5) + DONE,
        ],
        "openai-chat",
    )
    assert got.ok and [*got.times] == [1, 2, 3, 4, 5] and got.text == "so...Hi"


def test_a_null_is_as_good_as_absent() -> None:
    """Some servers write every field: an error of null is none, a call of null no token."""
    nothing = {"content": None, "reasoning_content": None, "tool_calls": None}
    answer = reading([
        delta(None, **{**nothing, "role": "assistant", "content": ""}),
        delta(None, **{**nothing, "content": "a"}),
        delta("stop", **nothing),
        data({"choices": [{"delta": None, "finish_reason": "stop"}], "error": None}),
        data({"choices": None, "error": None}) + DONE,
    ], "openai-chat")  # fmt: skip
    assert answer.ok and [*answer.times] == [1.0], answer.error
    ended = data({"choices": None, "error": None})
    assert reading([text("a"), ended, DONE]).ok
    last = {"content": "a", "stop": True, "error": None, "tokens_predicted": 1}
    assert reading([data(last)], "llama.cpp").ok


def test_the_last_line_need_not_have_an_end() -> None:
    assert one(*stream(text("a"), b"data: [DONE]")).ok
    assert "not of this API" in one(*stream(text("a"), b'data: {"choices')).error


def test_a_body_may_end_with_its_connection() -> None:
    """As in HTTP/1.0, without a length: what it says is heard."""
    head = b"HTTP/1.0 %s\r\ncontent-type: %s\r\n\r\n"
    bad = head % (b"400 Bad Request", b"application/json")
    answer = one(bad, b'{"error": {"message": "too long"}}', DROP)
    assert answer.error == "HTTP 400: too long"
    good = head % (b"200 OK", b"text/event-stream")
    assert one(good, text("a"), DONE, DROP).ok
    assert "before its last event" in one(good, text("a"), DROP).error


def test_llama_servers_own_events() -> None:
    last = {"content": "", "stop": True, "tokens_predicted": 7, "tokens_evaluated": 3}
    got = reading([data({"content": " a", "stop": False}), data(last)], "llama.cpp")
    assert got.ok and got.text == " a" and (got.tokens, got.prompt_counted) == (7, 3)


@pytest.mark.parametrize(
    "steps, why",
    [
        (page({"error": {"message": "too many"}}, "429 Too Many"), "HTTP 429: too many"),
        (page(b"<html>oops</html>", "502 Bad"), "HTTP 502: <html>oops</html>"),
        (page({"choices": []}), "no event stream"),
        (stream(text("a")), "ended before its last event"),
        (stream(usage(1, 0), DONE), "no part of an answer"),
        (stream(text("a"), data({"error": {"message": "it died"}}), DONE), "it died"),
        (stream(b'error: {"message": "loading"}\n\n', DONE), "loading"),
        (stream(data(b"{nonsense"), DONE), "not of this API"),
        (stream(data({"choices": [{"text": 7}]}), DONE), "not of this API"),
        ([*stream(text("a"))[:2], DROP], "closed after some chunks"),
        ([DROP], "closed after no chunks"),
        ([b"SSH-2.0-nothing\r\n"], "no HTTP"),
    ],
)
def test_failures_say_why(steps: Sequence[Step], why: str) -> None:
    got = one(*steps)
    assert not got.ok and why in got.error, got.error


def test_times_are_from_sending_to_arriving() -> None:
    got = one(*stream(0.1, text("a"), text("b"), 0.2, text("c"), DONE))
    assert got.ok and len(got.itls) == 2
    assert got.ttft >= 0.1 and got.latency >= 0.3 and min(got.itls) >= 0
    assert got.latency == pytest.approx(got.ttft + sum(got.itls))
    assert got.end >= got.times[-1]


def test_connections_are_kept_within_the_limit() -> None:
    with serving(
        lambda body: [Until(3), *words(body)] if len(fake.requested) <= 3 else words(body)
    ) as fake:
        got = played(fake, [ASK] * 12, most=3)
    assert all(answer.ok for answer in got.answers)
    assert fake.most == 3 and fake.connections == 3
    assert [body["max_tokens"] for body in fake.bodies] == [4] * 12


def test_a_burst_is_there_at_once() -> None:
    """None is answered before all have come."""
    with serving(lambda body: [Until(8), *words(body)] if len(fake.requested) <= 8 else []) as fake:
        got = played(fake, [ASK] * 8)
    assert fake.most == 8 and all(answer.ok for answer in got.answers)


def test_requests_go_out_in_the_order_of_their_times() -> None:
    asks = [LoadRequest([i], 1, 1, at=0.02 * i) for i in range(6)]
    with serving(words) as fake:
        got = played(fake, asks)
    assert [body["prompt"] for body in fake.bodies] == [[i] for i in range(6)]
    starts = [answer.start for answer in got.answers]
    assert starts == sorted(starts) and got.seconds > 0.095  # clocks of loops tick milliseconds


def test_a_server_that_closes_after_each_answer_is_requested_again() -> None:
    def closing(body: dict[str, Any]) -> list[Step]:
        steps = words(body)
        head = steps[0]
        assert isinstance(head, bytes)
        return [head.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), *steps[1:]]

    with serving(closing) as fake:
        got = played(fake, [ASK] * 5, most=1)
    assert all(answer.ok for answer in got.answers) and fake.connections == 5


def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    """Some servers close without a word before; a new connection is opened then."""
    with serving(lambda body: [*words(body), DROP]) as fake:
        got = played(fake, [ASK] * 6, most=1)
    assert all(answer.ok for answer in got.answers) and len(fake.bodies) == 6
    assert fake.connections == 6


def test_without_a_server_every_request_fails() -> None:
    with serving() as fake:
        pass
    got = played(fake, [ASK] * 2)
    assert {answer.error for answer in got.answers} == {
        f"no connection to {fake.url}: connection refused"
    }


def look(fake: Fake, seconds: float = 0) -> list[dict[str, Any]]:
    return asyncio.run(wait_until_ready(ServerAddress.of(fake.url), {"x-key": "k"}, seconds))


def test_a_server_that_is_ready_lists_its_models() -> None:
    with serving() as fake:
        assert look(fake) == [{"id": "fake", "max_model_len": 4096}]
    assert fake.requested[0][1]["x-key"] == "k"
    with serving(models={"detail": "not found"}, status="404 Not Found") as fake:
        assert look(fake) == []


@pytest.mark.parametrize(
    "status, seconds, said",
    [
        ("503 Busy", 0, "HTTP 503: Loading; --ready-check-timeout-sec waits"),
        ("503 Busy", 2, "HTTP 503: Loading after 2 s"),
        ("401 Unauthorized", 9, "refuses us: HTTP 401: Loading; a key: --header"),
    ],
)
def test_a_server_that_is_not_ready(status: str, seconds: float, said: str) -> None:
    loading = {"error": "Loading"}
    with serving(models=loading, status=status) as fake, pytest.raises(ConfigError, match=said):
        look(fake, seconds)
    fewest = {9: 2, 2: 2, 0: 1}[seconds]  # a key is missed at either page
    assert len(fake.requested) >= fewest and (seconds == 2 or len(fake.requested) == fewest)


def test_bodies_are_what_each_api_wants() -> None:
    manner = RequestManner(
        ("a", "b"), {"temperature": 0, "repetition_penalty": 2}, True, 3, {"x": 1}
    )
    ask = LoadRequest("hi", 1, 9)
    both = {"temperature": 0, "ignore_eos": True, "x": 1, "stream": True}
    openai = {**both, "repetition_penalty": 2, "stream_options": {"include_usage": True}}
    assert CompletionsApi().make_body(ask, manner, 3) == {
        **openai, "model": "b", "prompt": "hi", "max_tokens": 9, "logprobs": 3,
    }  # fmt: skip
    assert find_api("openai-chat").make_body(ask, manner, 0) == {
        **openai, "model": "a", "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    assert find_api("llama.cpp").make_body(ask, manner, 0) == {
        **both, "repeat_penalty": 2, "prompt": "hi", "n_predict": 9, "n_probs": 3,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'openai'"):
        find_api("opena")


@pytest.mark.parametrize(
    "url, shown",
    [
        ("http://localhost:80/v1/", "http://localhost:80"),
        ("https://a.b/x/v1", "https://a.b:443/x"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_places(url: str, shown: str) -> None:
    assert str(ServerAddress.of(url)) == shown


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x", "http://", "http://x:99999", "http://["]
)
def test_places_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url = "):
        ServerAddress.of(url)


def test_reasons_are_one_line() -> None:
    shapes = [b'{"error": {"message": "a\\nb"}}', b'{"message": "a\\nb"}', b'{"detail": "a\\nb"}']
    assert {read_reason(shape) for shape in [*shapes, b"a\nb"]} == {"a b"}
    assert "\x1b" not in read_reason(b"\x1b[31m") and read_reason(b"\xff\xfe")


@pytest.mark.parametrize("verified", [True, False])
def test_certificates_are_checked_by_default(verified: bool) -> None:
    tls = ConnectionPool(ServerAddress.of("https://a.b", verified=verified))._tls
    assert tls is not None and tls.check_hostname is verified
    assert tls.verify_mode is (ssl.CERT_REQUIRED if verified else ssl.CERT_NONE)
