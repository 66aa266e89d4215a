"""Answers that go round in circles end, over HTTP."""

from typing import Any

import pytest

from http_server import Running

TALK = [{"role": "user", "content": "A cat sat."}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FOUR = {"max_pattern_size": 3, "min_count": 4}
# One token is all that may be drawn, so it comes again and again.
STUCK = {"allowed_token_ids": [300], "max_tokens": 20, "ignore_eos": True}


@pytest.mark.parametrize(
    ("path", "requested"), [(TEXT, {"prompt": "Once"}), (CHAT, {"messages": TALK})]
)
def test_an_answer_that_repeats_itself_ends(
    talker: Running, path: str, requested: dict[str, Any]
) -> None:
    body = {**requested, **STUCK, "return_token_ids": True}
    assert talker.post(path, body).json["choices"][0]["finish_reason"] == "length"
    got = talker.post(path, {**body, "repetition_detection": FOUR})
    assert got.status == 200, got.body
    (one,) = got.json["choices"]
    assert one["token_ids"] == [300] * 4
    assert (one["finish_reason"], one["stop_reason"]) == ("repetition", "repetition_detected")
    streamed = talker.post(path, {**body, "repetition_detection": FOUR, "stream": True})
    parts = [choice for event in streamed.events for choice in event["choices"]]
    assert [token for part in parts for token in part.get("token_ids", [])] == [300] * 4
    last = parts[-1]
    assert (last["finish_reason"], last["stop_reason"]) == ("repetition", "repetition_detected")


def test_sizes_of_nothing_look_for_nothing(talker: Running) -> None:
    for nothing in (0, None):
        sizes = dict.fromkeys(("max_pattern_size", "min_pattern_size", "min_count"), nothing)
        got = talker.post(TEXT, {"prompt": "Once", **STUCK, "repetition_detection": sizes})
        assert got.status == 200, got.body
        assert got.json["choices"][0]["finish_reason"] == "length"
    four = {**FOUR, "min_pattern_size": None}
    got = talker.post(TEXT, {"prompt": "Once", **STUCK, "repetition_detection": four})
    assert got.json["choices"][0]["finish_reason"] == "repetition"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"max_pattern_size": 4000}, "repetition_detection.max_pattern_size"),
        ({"max_pattern_size": 4, "min_count": 1}, "repetition_detection.min_count"),
        ({"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2},
         "repetition_detection.min_pattern_size"),
        ({"max_size": 4}, "repetition_detection.max_size"),
        ({"max_pattern_size": "4"}, "repetition_detection.max_pattern_size"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(talker: Running, given: dict[str, Any], name: str) -> None:
    for path, requested in ((TEXT, {"prompt": "Once"}), (CHAT, {"messages": TALK})):
        got = talker.post(path, {**requested, "repetition_detection": given})
        assert got.status == 400 and got.json["error"]["param"] == name, got.body


def test_a_search_has_no_use_for_it(talker: Running) -> None:
    body = {"prompt": "Once", "use_beam_search": True, "n": 2, "repetition_detection": FOUR}
    got = talker.post(TEXT, body)
    assert got.status == 400 and got.json["error"]["param"] == "repetition_detection"
