"""What every reply says of its time, and of the prefix cache on request."""

import json
from typing import Any

import pytest

from flyweight.requests.collector import Collector
from flyweight.server.apis.usage import measure_llama_timings, measure_timings
from flyweight.types import Event, Finish, Request, SamplingParams, Timings
from http_server import Running, started

NAMES = {
    "time_to_first_token_ms", "queue_time_ms", "prefill_time_ms", "generation_time_ms",
    "mean_itl_ms", "tokens_per_second",
}  # fmt: skip
TALK = [{"role": "user", "content": "Tell me about a cat."}]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Silent:
    """A detokenizer that says nothing."""

    stopped = None

    def push(self, tokens: list[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class Mute(Collector):
    """Gathers without a vocabulary."""

    def make_detokenizer(self) -> Any:
        return Silent()


def gathered(
    spans: list[tuple[float, float, int]], arrival: float = 10.0, scheduled: float = 11.0
) -> Collector:
    """A request of a choice each for (first token, last token, tokens)."""
    clock = Clock()
    params = SamplingParams(n=len(spans))
    request = Request("r", (1, 2, 3), params, max_tokens=9, arrival=arrival)
    tokenizer: Any = None
    collector = Mute(request, tokenizer, None, clock)
    for index, (first, last, tokens) in enumerate(spans):
        for i in range(tokens):
            clock.now = first + (last - first) * i / max(1, tokens - 1)
            timed = Timings(arrival, scheduled, first, clock.now) if not i else None
            finish = Finish.LENGTH if i == tokens - 1 else None
            collector.feed(Event("r", index, (5,), finish=finish, timings=timed, cached=2))
    return collector


def test_one_choice() -> None:
    reported = measure_timings(gathered([(12.0, 14.0, 5)]))
    assert reported == {
        "time_to_first_token_ms": 2000, "queue_time_ms": 1000, "prefill_time_ms": 1000,
        "generation_time_ms": 2000, "mean_itl_ms": 500, "tokens_per_second": 2,
    }  # fmt: skip


def test_choices_run_side_by_side_so_gaps_are_not_divided_by_all_tokens() -> None:
    reported = measure_timings(gathered([(12.0, 14.0, 5), (12.0, 14.0, 5)]))
    assert reported["mean_itl_ms"] == 500 and reported["generation_time_ms"] == 2000
    assert reported["tokens_per_second"] == 4


def test_a_single_token_has_no_gap() -> None:
    reported = measure_timings(gathered([(12.0, 12.0, 1)]))
    assert reported["mean_itl_ms"] is None and reported["tokens_per_second"] == 0


def test_nothing_yet_is_zeros() -> None:
    reported = measure_timings(gathered([(0.0, 0.0, 0)]))
    assert reported["time_to_first_token_ms"] == 0 == reported["generation_time_ms"]


def test_several_prompts_have_the_timings_of_one_reply() -> None:
    one = gathered([(14.0, 20.0, 4)], arrival=10.0, scheduled=13.0)
    two = gathered([(12.0, 16.0, 5)], arrival=10.5, scheduled=11.0)
    reported = measure_timings(one, two)
    assert reported["time_to_first_token_ms"] == 2000 and reported["queue_time_ms"] == 500
    assert reported["generation_time_ms"] == 8000
    assert reported["mean_itl_ms"] == round(1000 * 10 / 7, 3)


def test_llama_servers_shape() -> None:
    assert measure_llama_timings(gathered([(12.0, 14.0, 4)])) == {
        "cache_n": 2, "prompt_n": 1, "prompt_ms": 1000, "prompt_per_token_ms": 1000,
        "prompt_per_second": 1, "predicted_n": 4, "predicted_ms": 2000,
        "predicted_per_token_ms": 500, "predicted_per_second": 2,
    }  # fmt: skip


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/v1/completions", {"prompt": "Once upon a time"}),
        ("/v1/completions", {"prompt": ["Once upon a time", "One day"]}),
        ("/v1/chat/completions", {"messages": TALK}),
    ],
)
def test_every_reply_has_timings(
    talker: Running, path: str, ask: dict[str, Any], n: int, stream: bool
) -> None:
    body = {**ask, "n": n, "max_tokens": 12, "ignore_eos": True, "seed": 4}
    if stream:
        options = {"include_usage": True}
        got = talker.post(path, {**body, "stream": True, "stream_options": options}).events[-1]
    else:
        got = talker.post(path, body).json
    reported = got["metrics"]
    assert set(reported) == NAMES
    assert got["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    parts = reported["queue_time_ms"] + reported["prefill_time_ms"]
    assert abs(parts - reported["time_to_first_token_ms"]) < 0.01
    assert 0 < reported["mean_itl_ms"] <= reported["generation_time_ms"]


SAID = "The owl and the fox went to the lake to find a red boat. " * 3
DIALECTS = {  # a body, where it says how long the answer may be, what reports cached tokens
    "/v1/completions": ({"prompt": SAID}, "max_tokens", "usage prompt_tokens_details"),
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": SAID}]}, "max_tokens",
                             "usage prompt_tokens_details"),
    "/v1/responses": ({"input": SAID}, "max_output_tokens", "usage input_tokens_details"),
    "/v1/messages": ({"messages": [{"role": "user", "content": SAID}]}, "max_tokens", "usage"),
    "/generate": ({"prompt": SAID}, "max_tokens", "usage prompt_tokens_details"),
    "/completion": ({"prompt": SAID}, "n_predict", ""),
    "/api/chat": ({"messages": [{"role": "user", "content": SAID}]}, "num_predict", ""),
    "/api/generate": ({"prompt": SAID, "raw": True}, "num_predict", ""),
}  # fmt: skip
CACHED = {"/v1/messages": "cache_read_input_tokens", "/completion": "tokens_cached"}


def last(talker: Running, path: str, *, stream: bool, **more: Any) -> dict[str, Any]:
    """What a reply of a dialect says at its end."""
    ask, most, _ = DIALECTS[path]
    body: dict[str, Any] = {**ask, "stream": stream, **more}
    if path.startswith("/api/"):
        body["options"] = {most: 6}
    else:
        body[most] = 6
    if path in ("/v1/messages", "/api/chat", "/api/generate"):
        body["model"] = talker.get("/v1/models").json["data"][0]["id"]
    if stream and path.endswith("completions"):
        body["stream_options"] = {"include_usage": True}
    got = talker.post(path, body)
    assert got.status == 200, got.body
    if not stream:
        return dict(got.json)
    if path.startswith("/api/"):
        return dict(json.loads(got.body.splitlines()[-1]))
    end = got.events[-2 if path == "/v1/messages" else -1]  # before message_stop
    return dict(end["response"] if path == "/v1/responses" else end)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DIALECTS)
def test_every_api_reports_times_and_what_was_cached(
    talker: Running, path: str, stream: bool
) -> None:
    last(talker, path, stream=False)
    reported = last(talker, path, stream=stream)
    assert "cache_explanation" not in reported
    assert set(reported["metrics"]) == NAMES and reported["metrics"]["time_to_first_token_ms"] > 0
    if path.startswith("/api/"):
        shares = reported["prompt_eval_duration"] + reported["eval_duration"]
        assert 0 < shares <= reported["total_duration"] + 2
    if path == "/completion":
        assert reported["timings"]["prompt_ms"] > 0 and reported["timings"]["cache_n"] > 0
    for word in DIALECTS[path][2].split():
        reported = reported[word]
    assert reported[CACHED.get(path, "cached_tokens")] > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DIALECTS)
def test_every_api_explains_the_cache_on_request(talker: Running, path: str, stream: bool) -> None:
    last(talker, path, stream=False)
    (found,) = last(talker, path, stream=stream, return_cache_explanation=True)["cache_explanation"]
    assert found["reason"] is None and found["diverged_at"] is None
    left = found["prompt_tokens"] - found["hit_tokens"]
    assert 0 < left <= found["block_size"] and found["hit_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DIALECTS)
def test_every_api_reports_costs_on_request(talker: Running, path: str, stream: bool) -> None:
    found = last(talker, path, stream=stream, return_cost=True)["cost"]
    assert found["step_seconds"] > 0
    assert found["machine_cost"] == found["cloud_cost"] == "unavailable"  # without prices
    assert "cost" not in last(talker, path, stream=stream)


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt")],
)
def test_so_do_vectors(server: Running, path: str, field: str) -> None:
    body = {"model": server.get("/v1/models").json["data"][0]["id"], field: SAID}
    assert server.post(path, {**body, "return_cost": True}).json["cost"]["step_seconds"] > 0
    assert "cost" not in server.post(path, body).json


def test_a_vector_has_times_and_an_explanation_too(server: Running) -> None:
    body = {"input": [SAID + "A vector.", "One"], "cache_salt": "vectors", "pooling": "last"}
    server.post("/v1/embeddings", body)
    got = server.post("/v1/embeddings", {**body, "return_cache_explanation": True}).json
    assert set(got["metrics"]) == {"queue_time_ms", "prefill_time_ms"}
    assert got["metrics"]["prefill_time_ms"] > 0 <= got["metrics"]["queue_time_ms"]
    long, short = got["cache_explanation"]
    assert long["reason"] is None and short["reason"] == "short"
    assert got["usage"]["prompt_tokens_details"]["cached_tokens"] == long["hit_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "field"), [("/api/embed", "input"), ("/api/embeddings", "prompt")]
)
def test_so_has_one_of_ollamas(server: Running, path: str, field: str) -> None:
    name = server.get("/v1/models").json["data"][0]["id"]
    salt = {"options": {"cache_salt": path}}
    body = {"model": name, field: SAID + "A vector.", **salt, "return_cache_explanation": True}
    (first,) = server.post(path, body).json["cache_explanation"]
    assert first["reason"] == "new_salt"
    got = server.post(path, body).json
    assert set(got["metrics"]) == {"queue_time_ms", "prefill_time_ms"}
    (again,) = got["cache_explanation"]
    assert again["reason"] is None and got["cached_tokens"] == again["hit_tokens"] > 0
    plain = server.post(path, {"model": name, field: "A cat"}).json
    assert "cache_explanation" not in plain and plain["cached_tokens"] == 0


def explained(server: Running, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 2, "return_cache_explanation": True, **more}
    got = server.post("/v1/completions", body)
    (found,) = (got.events[-1] if more.get("stream") else got.json)["cache_explanation"]
    return dict(found)


def test_the_cache_explanation_comes_where_it_is_requested(server: Running) -> None:
    salt = {"cache_salt": "explained"}
    story = "The owl and the fox went to the lake to find a red boat. " * 4
    first = explained(server, story, **salt)
    assert first["reason"] == "new_salt" and first["hit_tokens"] == 0 == first["diverged_at"]
    again = explained(server, story, **salt, stream=True)
    assert again["reason"] is None and again["diverged_at"] is None
    assert again["hit_tokens"] % again["block_size"] == 0 < again["hit_tokens"]
    assert again["prompt_tokens"] - again["hit_tokens"] <= again["block_size"]
    other = explained(server, story[:180] + "zebras. " + story, **salt)
    assert other["reason"] == "never_seen" and other["hit_tokens"] < other["diverged_at"]
    assert "zebras" in other["got"] and other["expected"] in story and other["fix"]
    assert first["expected"] is first["got"] is again["expected"] is again["fix"] is None
    plain = server.post("/v1/completions", {"prompt": story, "max_tokens": 2})
    assert "cache_explanation" not in plain.json


def test_strangers_learn_where_prompts_part_to_the_block_only() -> None:
    with started("--api-key", "one", "two", "--share-prefix-cache") as server:
        story = "The owl and the fox went to the lake to find a red boat. " * 4

        def ask(key: str, prompt: str, **more: Any) -> dict[str, Any]:
            body = {"prompt": prompt, "max_tokens": 2, "return_cache_explanation": True, **more}
            key = f"Bearer {key}"
            got = server.ask("POST", "/v1/completions", body, {"authorization": key})
            return dict(got.json["cache_explanation"][0])

        changed = story[:180] + "zebras. " + story
        ask("one", story)
        reported = ask("two", changed)
        assert reported["diverged_at"] == reported["hit_tokens"]
        assert reported["expected"] is None is reported["got"]
        ask("one", story, cache_salt="ours")
        exact = ask("one", changed, cache_salt="ours")
        assert exact["diverged_at"] > reported["diverged_at"] and exact["expected"] in story
        assert ask("two", changed, cache_salt="else")["reason"] == "new_salt"


@pytest.mark.parametrize(
    ("path", "ask"),
    [("/v1/completions", {"prompt": "Once"}), ("/v1/chat/completions", {"messages": TALK})],
)
def test_usage_as_it_runs_is_in_every_chunk(
    talker: Running, path: str, ask: dict[str, Any]
) -> None:
    """The chunk that names the role comes before the tokens of its choice."""
    body = {**ask, "n": 2, "max_tokens": 6, "ignore_eos": True, "stream": True,
            "stream_options": {"continuous_usage_stats": True}}  # fmt: skip
    events = talker.post(path, body).events
    made = [event["usage"]["completion_tokens"] for event in events]
    assert made == sorted(made) and made[-1] == 12
    if "messages" in ask:
        roles = [e for e in events if e["choices"] and "role" in e["choices"][0]["delta"]]
        assert len(roles) == 2 and roles[0] is events[0] and made[0] == 0
