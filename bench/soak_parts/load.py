"""A mixed load on several models: what clients, an operator and the page send.

Invariant: a request is drawn by a seed; prompt and answer fit into the context.  Only codes that a
kind names are allowed for it.  Knows no HTTP.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from soak_parts.client import SentRequest

WORDS = ("cat", "dog", "sun", "big", "house", "little", "girl", "tree", "ball", "mom", "red", "ran")
DOCUMENT = (
    "Once upon a time there was a little girl named Lily. She loved to play in the park with her "
    "friends. One sunny day she saw a big red ball under a tree. "
)
MOST_WORDS, MOST_TOKENS, LONG_ANSWER = 25, 48, 200
SALTS = 12  # of each tenant
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadKind:
    """`make` gives the path and the body, without the model; `leaves`: the client ends a stream."""

    name: str
    weight: int
    make: Callable[[Random], tuple[str, Body]]
    allowed: tuple[str, ...] = ()
    leaves: bool = False


def draw_text(draw: Random) -> str:
    """Half of the texts begin in the same way."""
    words = " ".join(draw.choices(WORDS, k=draw.randint(1, MOST_WORDS)))
    return f"{DOCUMENT if draw.random() < 0.5 else ''}{words}"


def draw_options(draw: Random) -> Body:
    heat = round(draw.random(), 2)  # not between 0 and 0.0001, which is refused
    options: Body = {"max_tokens": draw.randint(1, MOST_TOKENS), "temperature": heat}
    if draw.random() < 0.5:
        options["cache_salt"] = f"salt {draw.randrange(SALTS)}"
    return options


def draw_schema(draw: Random) -> Body:
    """Half of the schemas are new to every cache."""
    name = f"p{draw.getrandbits(64)}" if draw.random() < 0.5 else "age"
    return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}


def make_completion(draw: Random) -> tuple[str, Body]:
    more = {"n": draw.choice((1, 1, 2)), "logprobs": 2}
    return COMPLETIONS, {"prompt": draw_text(draw), **draw_options(draw), **more}


def make_chat(draw: Random) -> tuple[str, Body]:
    messages = [{"role": "user", "content": draw_text(draw)}]
    return CHAT, {"messages": messages, **draw_options(draw)}


def make_structured(draw: Random) -> tuple[str, Body]:
    path, body = make_completion(draw)
    return path, {**body, "structured_outputs": {"json": draw_schema(draw)}}


def make_structured_chat(draw: Random) -> tuple[str, Body]:
    path, body = make_chat(draw)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": draw_schema(draw)}}
    return path, {**body, "response_format": form}


def make_embedding(draw: Random) -> tuple[str, Body]:
    return EMBEDDINGS, {"input": [draw_text(draw) for _ in range(draw.randint(1, 3))]}


def make_long_stream(draw: Random) -> tuple[str, Body]:
    path, body = make_completion(draw)
    return path, {**body, "max_tokens": LONG_ANSWER, "ignore_eos": True, "stream": True}


def make_invalid(draw: Random) -> tuple[str, Body]:
    path, body = make_completion(draw)
    return path, {**body, "temperature": -1}


def stream(make: Callable[[Random], tuple[str, Body]]) -> Callable[[Random], tuple[str, Body]]:
    def made(draw: Random) -> tuple[str, Body]:
        path, body = make(draw)
        return path, {**body, "stream": True}

    return made


KINDS = (
    LoadKind("completion", 20, make_completion),
    LoadKind("completion, streamed", 20, stream(make_completion)),
    LoadKind("chat", 12, make_chat),
    LoadKind("chat, streamed", 16, stream(make_chat)),
    LoadKind("structured", 8, make_structured),
    LoadKind("structured chat, streamed", 6, stream(make_structured_chat)),
    LoadKind("embeddings", 6, make_embedding),
    LoadKind("aborted stream", 8, make_long_stream, leaves=True),
    LoadKind("invalid", 4, make_invalid, ("bad_value",)),
)


def draw_request(
    draw: Random, models: Sequence[str], keys: Sequence[str]
) -> tuple[SentRequest, tuple[str, ...]]:
    """A request of a client, and the codes that it may get."""
    (kind,) = draw.choices(KINDS, [one.weight for one in KINDS])
    path, body = kind.make(draw)
    body["model"] = draw.choice(models)
    leave = draw.randint(1, 8) if kind.leaves else 0
    request = SentRequest(kind.name, "POST", path, body, draw.choice(keys), leave)
    return request, kind.allowed


CANARIES: dict[str, Body] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
}


def make_canary(model: str, way: str, key: str) -> SentRequest:
    body = {"prompt": DOCUMENT, "max_tokens": 32, "logprobs": 1, "model": model, **CANARIES[way]}
    return SentRequest("canary", "POST", COMPLETIONS, body, key)


def make_page_requests(model: str, key: str) -> list[SentRequest]:
    """What the dashboard reads once a second."""
    paths = ("/metrics", f"/debug/kv?model={model}", f"/v1/engine/effective?model={model}")
    return [SentRequest("page data", "GET", path, None, key) for path in paths]


def make_load(model: str, key: str) -> SentRequest:
    return SentRequest("load", "POST", "/v1/models/load", {"model": model}, key)


def make_unload(model: str, key: str, leave_in: float = 0.0) -> SentRequest:
    kind = "aborted unload" if leave_in else "unload"
    body = {"model": model}
    return SentRequest(kind, "POST", "/v1/models/unload", body, key, leave_in=leave_in)
