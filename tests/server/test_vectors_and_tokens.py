"""/v1/embeddings, and the routes between text and ids."""

from base64 import b64decode
from math import isclose, sqrt
from struct import unpack

import pytest

from flyweight import LLM
from http_server import Running

TALK = [{"role": "user", "content": "A cat sat."}]


def test_a_vector_is_what_embed_gives(server: Running) -> None:
    got = server.post("/v1/embeddings", {"input": ["A cat", "A dog sat"]}).json
    (cat, dog) = LLM().embed(["A cat", "A dog sat"])
    assert [d["embedding"] for d in got["data"]] == [cat.outputs.embedding, dog.outputs.embedding]
    tokens = len(cat.prompt_token_ids) + len(dog.prompt_token_ids)
    cached = got["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert got["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens} and cached == 0


def test_ids_are_as_good_as_their_text(server: Running) -> None:
    ids = server.post("/tokenize", {"prompt": "A cat"}).json["tokens"]
    text = server.post("/v1/embeddings", {"input": "A cat"}).json["data"][0]
    assert server.post("/v1/embeddings", {"input": ids}).json["data"] == [text]
    assert server.post("/v1/embeddings", {"input": [ids]}).json["data"] == [text]


def test_base64_is_the_same_numbers(server: Running) -> None:
    body = {"input": "A cat", "pooling": "mean"}
    plain = server.post("/v1/embeddings", body).json["data"][0]["embedding"]
    packed = server.post("/v1/embeddings", {**body, "encoding_format": "base64"})
    raw = b64decode(packed.json["data"][0]["embedding"])
    assert list(unpack(f"<{len(plain)}f", raw)) == plain
    last = server.post("/v1/embeddings", {"input": "A cat"}).json["data"][0]["embedding"]
    assert last != plain


def test_a_shorter_vector_points_the_same_way(server: Running) -> None:
    plain = server.post("/v1/embeddings", {"input": "A cat"}).json["data"][0]["embedding"]
    short = server.post("/v1/embeddings", {"input": "A cat", "dimensions": 8})
    cut = short.json["data"][0]["embedding"]
    length = sqrt(sum(x * x for x in plain[:8]))
    assert len(cut) == 8 and isclose(sum(x * x for x in cut), 1, rel_tol=1e-6)
    assert all(isclose(a, b / length, rel_tol=1e-5) for a, b in zip(cut, plain[:8], strict=True))


@pytest.mark.parametrize(
    "body", [{"dimensions": 1 << 20}, {"pooling": "max"}, {"input": []}, {"input": [[]]}]
)
def test_vectors_that_cannot_be(server: Running, body: dict[str, object]) -> None:
    got = server.post("/v1/embeddings", {"input": "x", **body})
    assert got.status == 400
    assert got.json["error"]["param"].startswith(next(iter(body)))


def test_vllms_names_of_a_vectors_form(server: Running) -> None:
    form = {"embed_dtype": "float32", "endianness": "native"}
    for unit in (True, False):
        ours = server.post("/v1/embeddings", {"input": "A cat", "normalize": unit}).json
        got = server.post("/v1/embeddings", {"input": "A cat", "use_activation": unit, **form})
        assert got.status == 200 and got.json["data"] == ours["data"], got.body
    other = server.post("/v1/embeddings", {"input": "A cat", "embed_dtype": "float16"})
    assert other.status == 400 and "allowed: 'float32'" in other.json["error"]["message"]


def test_both_apis_of_tokenize(server: Running) -> None:
    text = "Once upon a time"
    vllm = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json
    llama = server.post("/tokenize", {"content": text, "with_pieces": True}).json
    assert vllm["count"] == len(vllm["tokens"]) == len(vllm["token_strs"])
    assert vllm["tokens"][1:] == [t["id"] for t in llama["tokens"]], "llama-server adds no BOS"
    assert "".join(t["piece"] for t in llama["tokens"]).strip() == text
    back = server.post("/detokenize", {"tokens": [t["id"] for t in llama["tokens"]]}).json
    assert back["prompt"] == back["content"] and back["content"].strip() == text
    bare = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json
    assert bare["tokens"] == vllm["tokens"][1:]


def test_one_source_is_tokenised(server: Running) -> None:
    for body in ({}, {"prompt": "a", "content": "b"}, {"prompt": "a", "documents": []}):
        assert server.post("/tokenize", body).status == 400
    got = server.post("/detokenize", {"tokens": [2**30]})
    assert got.status == 400 and "out of range" in got.json["error"]["message"]


def test_a_conversation_as_the_model_sees_it(talker: Running) -> None:
    shown = talker.post("/apply-template", {"messages": TALK}).json["prompt"]
    assert shown == "<user> A cat sat.\n<assistant> Once"
    ids = talker.post("/tokenize", {"messages": TALK}).json["tokens"]
    same = talker.post("/tokenize", {"prompt": shown, "add_special_tokens": False}).json["tokens"]
    assert ids == same
    counted = talker.post("/v1/chat/completions/input_tokens", {"messages": TALK}).json
    assert counted["input_tokens"] == len(ids)
    answer = talker.post("/v1/chat/completions", {"messages": TALK, "max_tokens": 1}).json
    assert answer["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("special", [True, False])
def test_a_conversation_gets_the_special_tokens_a_chat_would(
    talker: Running, special: bool
) -> None:
    body = {"messages": TALK, "add_special_tokens": special}
    got = talker.post("/tokenize", body)
    assert got.status == 200, got.body
    more = {"max_tokens": 1, "return_token_ids": True}
    answer = talker.post("/v1/chat/completions", {**body, **more}).json
    assert got.json["tokens"] == answer["prompt_token_ids"]
    plain = talker.post("/tokenize", {"messages": TALK}).json["tokens"]
    assert got.json["count"] == len(plain) + special


def test_generate(server: Running) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    got = server.post("/generate", body).json
    text = server.post("/v1/completions", body).json["choices"][0]["text"]
    assert got["text"] == text and got["tokens"] == 12
    assert got["usage"]["completion_tokens"] == 12
    events = server.post("/generate", {**body, "stream": True}).events
    assert "".join(e["text"] for e in events) == text and events[-1]["tokens"] == 12
    assert server.post("/generate", {**body, "n": 2}).json["error"]["param"] == "n"


@pytest.mark.parametrize("route", ["/apply-template", "/v1/chat/completions/input_tokens"])
def test_what_a_chat_would_refuse_is_refused_unasked(talker: Running, route: str) -> None:
    got = talker.post(route, {"messages": TALK, "allowed_token_ids": [2**31 - 1]})
    assert got.status == 400 and got.json["error"]["param"] == "allowed_token_ids"
