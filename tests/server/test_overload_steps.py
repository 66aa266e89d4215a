"""What is done to requests while the queue fills, before they are refused."""

import asyncio
import json
import re
from array import array
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from types import SimpleNamespace
from typing import Any

import pytest

import chat_model
from flyweight.engine.sequence import Sequence
from flyweight.errors import ConfigError, RequestError
from flyweight.kv.blocks import Table
from flyweight.params.structured import StructuredOutputs
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.requests.prompts import PreparedPrompt, RequestContext
from flyweight.server.admission.overload import OverloadLadder, shorten, stop_drafts
from flyweight.server.admission.queue import AdmissionQueue
from flyweight.server.apis.fields import Fields
from flyweight.server.app import _handle
from flyweight.server.overload_steps import check_overload_models, parse_overload_steps
from flyweight.server.settings import ServerSettings
from flyweight.types import Request, RequestWords, SamplingParams
from http_server import Running, started

STEPS = "max_tokens=2,model=talker,no_speculation"
TEXT = "/v1/completions"
FORMS = "max_tokens=N, model=NAME, no_speculation"
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 4}'
HEADER = "x-flyweight-degraded"
BODY = {"max_tokens": 5, "ignore_eos": True, "temperature": 0}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two models, the second with a context of 64 tokens; steps from a quarter of the queue on."""
    path = chat_model.write(tmp_path_factory.mktemp("pair") / "talker.gguf", context=64)
    words = ("tales=stories", f"talker={path}", "--overload-steps", STEPS,
             "--overload-percent", "25", "--max-queued-requests", "8",
             "--speculative-config", DRAFTS)  # fmt: skip
    with started(*words) as running:
        yield running


# --- the option ---


def test_steps_apply_at_equal_distances() -> None:
    found = parse_overload_steps(f" {STEPS.replace(',', ' , ')} ", 25)
    assert [(str(step), step.share) for step in found] == [
        ("max_tokens=2", 0.25), ("model=talker", 0.5), ("no_speculation", 0.75),
    ]  # fmt: skip
    assert parse_overload_steps("", 50) == ()
    assert [step.share for step in parse_overload_steps("max_tokens=9", 80)] == [0.8]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("max_token=5", f"is not a step; allowed: {FORMS} (did you mean 'max_tokens'?)"),
        ("faster", f"is not a step; allowed: {FORMS}"),
        ("max_tokens=5,", f"is not a step; allowed: {FORMS}"),
        ("max_tokens", "is not valid; allowed: max_tokens=N, with a whole number N of 1 or more; "
         "nearest valid: max_tokens=1"),
        ("max_tokens=0", "is not valid; allowed: max_tokens=N, with a whole number N of 1 or more; "
         "nearest valid: max_tokens=1"),
        ("model=", "names no model; allowed: model=NAME"),
        ("no_speculation=1", "has a value; allowed: no_speculation; nearest valid: no_speculation"),
    ],
)  # fmt: skip
def test_other_steps_are_refused(given: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSettings(overload_steps=given)
    word = given.split(",")[-1]
    assert str(caught.value) == f"overload_steps = {word!r} {problem}"


def test_a_step_names_a_served_model() -> None:
    steps = parse_overload_steps("model=talkr", 50)
    check_overload_models(steps, ["talkr"])
    with pytest.raises(ConfigError) as caught:
        check_overload_models(steps, ["tales", "talker"])
    assert str(caught.value) == (
        "overload_steps = 'model=talkr' is not a served model; allowed: model=tales, model=talker "
        "(did you mean 'talker'?)"
    )


def test_a_server_refuses_them_at_its_start(refusal: Callable[..., str]) -> None:
    assert "'max_token=5' is not a step" in refusal("--overload-steps", "max_token=5")
    assert "'model=other' is not a served model" in refusal("--overload-steps", "model=other")


# --- which steps apply, and to what ---


def make_ladder(steps: str, requests: int) -> OverloadLadder:
    """With a queue of eight requests, of which so many are taken."""
    settings = ServerSettings(overload_steps=steps, overload_percent=25, max_queued_requests=8)
    queue = AdmissionQueue(settings)
    if requests:
        queue.enter(requests, 10 * requests)
    return OverloadLadder(settings, queue)


@pytest.mark.parametrize(("requests", "active"), [(0, 0), (1, 0), (2, 1), (4, 2), (6, 3), (8, 3)])
def test_the_queue_decides_which_steps_apply(requests: int, active: int) -> None:
    found = make_ladder(STEPS, requests).list_active()
    assert [str(step) for step in found] == STEPS.split(",")[:active]


def test_a_queue_also_fills_with_tokens() -> None:
    settings = ServerSettings(max_queued_requests=100, max_queued_tokens=1000)
    queue = AdmissionQueue(settings)
    assert queue.measure_fill() == 0
    queue.enter(10, 400)
    assert queue.measure_fill() == 0.4
    queue.leave(queue.enter(40, 0), 0, 0)
    assert queue.measure_fill() == 0.5


def make_directory(*loaded: bool) -> Any:
    """Models called a, b, ...; some of them are loaded."""
    entries = [
        SimpleNamespace(own=(name,), also=(), model=name if is_loaded else None,
                        client=SimpleNamespace(ready=True), adapters=(f"{name}-poet",))
        for name, is_loaded in zip("abc", loaded, strict=False)
    ]  # fmt: skip
    found = {name: one for one in entries for name in (*one.own, *one.adapters)}
    return SimpleNamespace(find=lambda name: found[name or "a"])


@pytest.mark.parametrize(
    ("steps", "loaded", "name", "chosen"),
    [
        ("model=b", (True, True), "a", "b"),
        ("model=b", (True, True), None, "b"),
        ("model=b", (True, True), "b", None),
        ("model=b", (True, False), "a", None),  # it is not loaded in the place of another
        ("model=b", (True, True), "a-poet", None),  # an adapter is requested
        ("model=b,model=c", (True, True, True), "a", "c"),
        ("model=b,model=c", (True, True, False), "a", "b"),
        ("max_tokens=5", (True, True), "a", None),
    ],
)
def test_a_loaded_model_takes_the_place_of_another(
    steps: str, loaded: tuple[bool, ...], name: str | None, chosen: str | None
) -> None:
    found = make_ladder(steps, 8).choose_model(make_directory(*loaded), name)
    assert (None if found is None else found[0].model) == chosen
    assert make_ladder(steps, 1).choose_model(make_directory(*loaded), name) is None


def make_prompt(tokens: int = 10, **more: Any) -> PreparedPrompt:
    params = more.pop("params", SamplingParams(max_tokens=50))
    ids = array("i", [5] * tokens)
    return PreparedPrompt(None, ids, params, RequestContext(), RequestWords(), **more)


def test_answers_are_shortened() -> None:
    assert shorten(make_prompt(), 20, 100).params.max_tokens == 20
    free = make_prompt(params=SamplingParams(max_tokens=None))
    assert shorten(free, 20, 100).params.max_tokens == 20
    least = make_prompt(params=SamplingParams(max_tokens=50, min_tokens=30))
    assert shorten(least, 20, 100).params.max_tokens == 30
    beam = shorten(make_prompt(beam=BeamSearchParams(max_tokens=50)), 20, 100).beam
    assert beam is not None and beam.max_tokens == 20


@pytest.mark.parametrize(
    "prompt",
    [
        make_prompt(params=SamplingParams(max_tokens=20)),
        make_prompt(90),  # the context has room for ten tokens
        make_prompt(params=SamplingParams(max_tokens=0, prompt_logprobs=1)),
        make_prompt(params=SamplingParams(structured_outputs=StructuredOutputs(json_object=True))),
        make_prompt(pooling=PoolingParams()),
    ],
)
def test_what_is_short_or_has_a_format_is_not(prompt: PreparedPrompt) -> None:
    assert shorten(prompt, 20, 100) is prompt


def test_nothing_is_drafted_for_a_request_without_speculation() -> None:
    lane = stop_drafts(make_prompt()).lane
    assert not lane.drafted
    for drafted in (True, False):
        request = Request("r", (5,), SamplingParams(), drafted=drafted)
        seq = Sequence(request, 0, (0, 0, 0), Table(b""), array("i", [5]))
        assert seq.options.drafts is drafted
    ladder, prompts = make_ladder("no_speculation", 8), [make_prompt()]
    for drafts, done in ((0, []), (4, ["no_speculation"])):
        model: Any = SimpleNamespace(
            client=SimpleNamespace(facts={"draft_tokens": drafts}), max_model_len=100
        )
        assert [str(step) for step in ladder.change_prompts(model, prompts)[1]] == done


# --- a server whose queue fills ---


def begin(server: Running, **body: Any) -> tuple[HTTPConnection, HTTPResponse]:
    """A stream that has begun: it has its place in the queue."""
    line = server.connection()
    raw = json.dumps({**BODY, **STREAM, **body})
    line.request("POST", TEXT, raw, {"content-type": "application/json"})
    return line, line.getresponse()


def read_usage(line: HTTPConnection, got: HTTPResponse) -> dict[str, Any]:
    """The last chunk of a stream."""
    parts = [x for x in got.read().split(b"\n") if x.startswith(b"data: {")]
    line.close()
    found: dict[str, Any] = json.loads(parts[-1].removeprefix(b"data: "))
    return found


def count_degraded(server: Running) -> dict[tuple[str, str], int]:
    page = server.get("/metrics").body.decode()
    pattern = r'^flyweight:degraded_requests_total{.*model_name="(\w+)",step="(\w+)"} (\d+)'
    found = re.findall(pattern, page, re.M)
    return {(model, step): int(count) for model, step, count in found if int(count)}


def test_requests_are_degraded_before_they_are_refused(pair: Running) -> None:
    for name in ("tales", "talker"):  # both are loaded then
        got = pair.post(TEXT, {**BODY, "prompt": "Once", "model": name})
        assert got.status == 200 and HEADER not in got.headers
    expected: list[tuple[dict[str, Any], list[str], int]] = [
        ({}, [], 5),
        ({}, [], 5),
        ({}, ["max_tokens=2"], 2),
        ({"model": "talker"}, ["max_tokens=2"], 2),
        ({"model": "tales"}, ["model=talker", "max_tokens=2"], 2),
        ({"prompt": [20] * 80}, ["max_tokens=2"], 2),  # too long for the other model
        ({}, ["model=talker", "max_tokens=2", "no_speculation"], 2),
        ({"max_tokens": 1}, ["model=talker", "no_speculation"], 1),
    ]
    with pair.paused():
        streams = [begin(pair, **{"prompt": f"Once {i}", **body})
                   for i, (body, *_) in enumerate(expected)]  # fmt: skip
        refused = pair.post(TEXT, {**BODY, "prompt": "Once"})
    assert refused.status == 429 and refused.json["error"]["code"] == "queue_full"
    assert HEADER not in refused.headers
    for (line, got), (_, steps, tokens) in zip(streams, expected, strict=True):
        assert got.status == 200 and got.getheader(HEADER, "") == ", ".join(steps)
        last = read_usage(line, got)
        assert last["metrics"].get("degraded", []) == steps
        assert last["usage"]["completion_tokens"] == tokens
    assert count_degraded(pair) == {
        ("tales", "max_tokens"): 2, ("talker", "max_tokens"): 3, ("talker", "model"): 3,
        ("talker", "no_speculation"): 2,
    }  # fmt: skip
    pair.until(pair.empty)
    got = pair.post(TEXT, {**BODY, "prompt": "Once"})
    assert HEADER not in got.headers and got.json["usage"]["completion_tokens"] == 5


def test_the_model_that_took_over_is_free_before_the_named_one_is_tried() -> None:
    """The named one may have to be loaded in its memory."""
    held: list[str] = []
    released: list[str] = []

    def hold(request: Any, name: str) -> None:
        held.append(name)
        model = SimpleNamespace(release=lambda: released.append(name))
        request.scope.setdefault("models", []).append(model)

    async def handler(server: Any, request: Any, body: Any) -> Any:
        first = not held
        hold(request, "small" if first else "big")
        if first:
            raise RequestError("is too long for small")
        assert released == ["small"]
        return "by big"

    async def work() -> Any:
        async def read() -> bytes:
            return b"{}"

        request: Any = SimpleNamespace(scope={}, body=read)
        server: Any = SimpleNamespace(keep_model=lambda request: True, settings=ServerSettings())
        entry: Any = SimpleNamespace(body=Fields, handler=handler)
        return await _handle(server, entry, request)

    assert asyncio.run(work()) == "by big" and held == ["small", "big"]
