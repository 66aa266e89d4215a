"""Log-probabilities over HTTP: of prompts and answers, whole and streamed, by text and by id."""

from typing import Any

import pytest

from flyweight.server.apis.logprobs import find_offsets
from http_server import Running

GREEDY = {"temperature": 0, "max_tokens": 6}
PROMPT = "Once upon a time, there was a “cat” – naïve"
TALK = [{"role": "user", "content": "A cat sat."}]
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def completed(server: Running, **more: Any) -> dict[str, Any]:
    got = server.post("/v1/completions", {"prompt": PROMPT, **GREEDY, **more})
    assert got.status == 200, got.body
    found: dict[str, Any] = got.json
    return found


def chunks(server: Running, path: str, body: dict[str, Any]) -> list[Any]:
    got = server.post(path, {**body, "stream": True})
    assert got.status == 200, got.body
    return [event for event in got.events if event["choices"]]


def ids_of(server: Running, **given: Any) -> list[int]:
    found: list[int] = server.post("/tokenize", given).json["tokens"]
    return found


def test_the_scores_of_a_prompt_are_in_the_reply(server: Running) -> None:
    ids = ids_of(server, prompt=PROMPT)
    (choice,) = completed(server, prompt_logprobs=2)["choices"]
    reported = choice["prompt_logprobs"]
    assert len(reported) == len(ids) and reported[0] is None
    for token, entry in zip(ids[1:], reported[1:], strict=True):
        own = entry[str(token)]
        assert own["logprob"] <= 0 and own["rank"] >= 1 and isinstance(own["decoded_token"], str)
        assert {1, 2} <= {one["rank"] for one in entry.values()}
    assert "prompt_logprobs" not in completed(server)["choices"][0]
    echoed = completed(server, echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
    own = [reported[i][str(token)]["logprob"] for i, token in enumerate(ids) if i]
    assert echoed["token_logprobs"] == [None, *own]


def test_a_stream_reports_the_scores_of_a_prompt_once(server: Running) -> None:
    whole = completed(server, prompt_logprobs=1, n=2, seed=1)["choices"]
    body = {"prompt": PROMPT, **GREEDY, "prompt_logprobs": 1, "n": 2, "seed": 1}
    for choice in whole:
        mine = [c for e in chunks(server, "/v1/completions", body) for c in e["choices"]
                if c["index"] == choice["index"]]  # fmt: skip
        assert mine[0]["prompt_logprobs"] == choice["prompt_logprobs"]
        assert all("prompt_logprobs" not in one for one in mine[1:])


def test_chat_reports_the_scores_and_ids_of_its_prompt(talker: Running) -> None:
    body = {"messages": TALK, **GREEDY, "prompt_logprobs": 1, "return_token_ids": True}
    got = talker.post("/v1/chat/completions", body).json
    ids = ids_of(talker, messages=TALK)
    assert got["prompt_token_ids"] == ids and len(got["prompt_logprobs"]) == len(ids)
    assert got["prompt_logprobs"][0] is None
    assert all(str(token) in got["prompt_logprobs"][i] for i, token in enumerate(ids) if i)
    first, *rest = chunks(talker, "/v1/chat/completions", body)
    assert first["prompt_token_ids"] == ids
    assert first["prompt_logprobs"] == got["prompt_logprobs"]
    assert all("prompt_token_ids" not in e and "prompt_logprobs" not in e for e in rest)


def test_chat_reports_the_text_of_its_prompt(talker: Running) -> None:
    body = {"messages": TALK, **GREEDY, "return_prompt_text": True}
    shown = talker.post("/apply-template", {"messages": TALK}).json["prompt"]
    assert talker.post("/v1/chat/completions", body).json["prompt_text"] == shown
    first, *rest = chunks(talker, "/v1/chat/completions", body)
    assert first["prompt_text"] == shown and all("prompt_text" not in one for one in rest)
    cut = {**body, "truncate_prompt_tokens": 3, "return_token_ids": True}
    got = talker.post("/v1/chat/completions", cut).json
    kept = talker.post("/detokenize", {"tokens": got["prompt_token_ids"]}).json["prompt"]
    assert got["prompt_text"] == kept != shown


def test_a_stream_of_completions_reports_the_ids_of_its_prompt(server: Running) -> None:
    body = {"prompt": PROMPT, **GREEDY, "return_token_ids": True}
    whole = server.post("/v1/completions", body).json["choices"][0]
    parts = [e["choices"][0] for e in chunks(server, "/v1/completions", body)]
    assert (
        parts[0]["prompt_token_ids"] == whole["prompt_token_ids"] == ids_of(server, prompt=PROMPT)
    )
    assert all("prompt_token_ids" not in one for one in parts[1:])
    assert [i for one in parts for i in one["token_ids"]] == whole["token_ids"]


@pytest.mark.parametrize(
    ("most", "echo"), [(0, True), (1, True), (6, True), (1, False), (6, False)]
)
def test_the_joined_stream_has_the_scores_of_the_whole(
    server: Running, most: int, echo: bool
) -> None:
    more = {"max_tokens": most, "echo": echo, "logprobs": 2, "n": 2, "temperature": 1, "seed": 5}
    whole = completed(server, **more)["choices"]
    events = chunks(server, "/v1/completions", {"prompt": PROMPT, **more})
    for choice in whole:
        mine = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        reported = [c["logprobs"] for c in mine if c["logprobs"]]
        joined = {name: [x for one in reported for x in one[name]] for name in LISTS}
        assert joined == choice["logprobs"]
        assert "".join(c["text"] for c in mine) == choice["text"]
        prompt = len(ids_of(server, prompt=PROMPT)) if echo else 0
        assert len(joined["tokens"]) == prompt + most


@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_chosen_token_is_always_reported(server: Running, most: int) -> None:
    """next to the likely ones, where it is none of them: of the answer and of an echoed prompt."""
    more = {"temperature": 1.5, "seed": 3, "max_tokens": 24, "return_tokens_as_token_ids": True}
    reported = completed(server, echo=True, logprobs=most, **more)["choices"][0]["logprobs"]
    places = list(
        zip(reported["tokens"], reported["token_logprobs"], reported["top_logprobs"], strict=True)
    )
    assert places[0][1:] == (None, None)
    for token, logprob, best in places[1:]:
        assert best[token] == logprob and max(most, 1) <= len(best) <= most + 1
    assert any(len(best) == most + 1 for _, _, best in places[1:]), "some are not likely"


def test_offsets_are_places_in_the_text(server: Running) -> None:
    choice = completed(server, echo=True, logprobs=0, max_tokens=12)["choices"][0]
    reported, text = choice["logprobs"], choice["text"]
    assert text.startswith(PROMPT) and reported["text_offset"][-1] > len(PROMPT)
    places = list(zip(reported["tokens"], reported["text_offset"], strict=True))
    read = [(token, at) for token, at in places[1:] if token and "�" not in token]
    assert len(read) > 12
    for token, at in read:
        assert text[at:].startswith((token, token.removeprefix(" "))), (token, at)


def test_a_prompts_pieces_have_the_offsets_of_its_text() -> None:
    pieces = [b"<s>", b" Once", b" na", b"\xc3", b"\xaf", b"ve"]
    assert find_offsets("Once naïve", pieces) == [0, 0, 4, 7, 8, 8]


def test_tokens_may_be_returned_as_ids(server: Running, talker: Running) -> None:
    more = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    one = completed(server, logprobs=2, **more)["choices"][0]
    assert one["logprobs"]["tokens"] == [f"token_id:{i}" for i in one["token_ids"]]
    assert all(name.startswith("token_id:") for x in one["logprobs"]["top_logprobs"] for name in x)
    body = {"messages": TALK, **GREEDY, "logprobs": True, "top_logprobs": 2, **more}
    said = talker.post("/v1/chat/completions", body).json["choices"][0]
    listed = said["logprobs"]["content"]
    assert [x["token"] for x in listed] == [f"token_id:{i}" for i in said["token_ids"]]
    assert all(y["token"].startswith("token_id:") for x in listed for y in x["top_logprobs"])
    assert bytes(b for x in listed for b in x["bytes"]).decode() == said["message"]["content"]
    parts = [c for e in chunks(talker, "/v1/chat/completions", body) for c in e["choices"]]
    streamed = [x for c in parts if c["logprobs"] for x in c["logprobs"]["content"]]
    assert streamed == listed


def test_bytes_are_the_tokens_own(server: Running) -> None:
    """A character of several tokens: each has its share of the bytes."""
    body = {"content": "漢", "with_pieces": True}
    pieces = [
        x for x in server.post("/tokenize", body).json["tokens"] if isinstance(x["piece"], list)
    ]
    assert pieces, "the vocabulary spells it in bytes"
    for one in pieces:
        forced = {"allowed_token_ids": [one["id"]], "max_tokens": 1, "logprobs": True}
        got = server.post("/v1/chat/completions", {"messages": TALK, **forced}).json
        (entry,) = got["choices"][0]["logprobs"]["content"]
        assert entry["bytes"] == one["piece"]
        llama = {"prompt": "a", "n_predict": 1, "n_probs": 1, "logit_bias": [[one["id"], 100]]}
        (reported,) = server.post("/completion", llama).json["completion_probabilities"]
        assert reported["id"] == one["id"] and reported["bytes"] == one["piece"]


def test_listed_ids_are_reported_instead(talker: Running) -> None:
    ids, more = [421, 5, 300], {"logprobs": True, "top_logprobs": 2}
    body = {"messages": TALK, **GREEDY, **more, "return_tokens_as_token_ids": True}
    usual = talker.post("/v1/chat/completions", body).json["choices"][0]["logprobs"]["content"]
    listed = {**body, "logprob_token_ids": ids}
    (choice,) = talker.post("/v1/chat/completions", listed).json["choices"]
    reported = choice["logprobs"]["content"]
    names = [f"token_id:{i}" for i in ids]
    for one, before in zip(reported, usual, strict=True):
        assert (one["token"], one["logprob"]) == (before["token"], before["logprob"])
        assert [x["token"] for x in one["top_logprobs"]] == list(
            dict.fromkeys([one["token"], *names])
        )
    parts = chunks(talker, "/v1/chat/completions", listed)
    found = [part["choices"][0]["logprobs"] for part in parts]
    assert [one for logprobs in found if logprobs for one in logprobs["content"]] == reported
    got = completed(talker, logprobs=1, echo=True, logprob_token_ids=ids,
                    return_tokens_as_token_ids=True)["choices"][0]["logprobs"]  # fmt: skip
    assert all(set(best) >= set(names) for best in got["top_logprobs"][-6:])
    assert all(len(best) <= 2 for best in got["top_logprobs"][1:-6])  # of the prompt: as usual


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        ("/v1/chat/completions", {}, "allowed: with logprobs = true"),
        ("/v1/completions", {}, "allowed: with logprobs = 0 to 64"),
        ("/v1/completions", {"logprobs": 0, "logprob_token_ids": [9999]}, "9999 is out of range"),
        ("/v1/completions", {"logprobs": 0, "logprob_token_ids": [5] * 21}, "at most 20"),
        ("/v1/completions", {"logprobs": 0, "use_beam_search": True}, "beam search"),
    ],
)
def test_lists_that_make_no_sense_are_refused(
    talker: Running, path: str, more: dict[str, Any], words: str
) -> None:
    prompt = {"messages": TALK} if "chat" in path else {"prompt": PROMPT}
    got = talker.post(path, {**prompt, **GREEDY, "logprob_token_ids": [5], **more})
    assert got.status == 400 and words in got.json["error"]["message"], got.body
