"""What one client gets does not depend on the others, and reveals nothing of them."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from http_server import Reply, Running, served

COMPANY = 32
WORDS = ("cat", "dog", "sun", "moon", "tree", "girl", "boy", "red", "blue", "big", "house", "ball")
FEW = {"max_model_len": 128, "block_size": 8, "blocks": 40, "max_num_seqs": 8}


def together(server: Running, bodies: list[dict[str, Any]]) -> list[Reply]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post("/v1/completions", body), bodies))


def mixed(count: int) -> list[dict[str, Any]]:
    """Prompts of all lengths, greedy and sampled."""
    draw = random.Random(5)
    found: list[dict[str, Any]] = []
    for i in range(count):
        prompt = " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
        own = {"temperature": 0} if i % 2 else {"temperature": 0.9, "seed": i, "top_p": 0.9}
        penalty = {"repetition_penalty": 1.2} if i % 3 else {}
        found.append({"prompt": prompt, "max_tokens": 20, "logprobs": 4, **own, **penalty})
    return found


def test_company_changes_no_token_and_no_logprob(server: Running) -> None:
    bodies = mixed(COMPANY)
    alone = [server.post("/v1/completions", body).json["choices"] for body in bodies]
    server.post("/reset_prefix_cache", {})
    got = together(server, bodies)
    assert [reply.json["choices"] for reply in got] == alone
    steps = server.get("/debug/steps").json["steps"]
    assert max(len(step["chunks"]) for step in steps) > 4, "they were not computed together"
    streamed = [server.post("/v1/completions", {**body, "stream": True}) for body in bodies[:8]]
    for reply, whole in zip(streamed, alone, strict=False):
        assert "".join(e["choices"][0]["text"] for e in reply.events) == whole[0]["text"]


@pytest.fixture(scope="module")
def cramped() -> Iterator[Running]:
    """A server with blocks for a few sequences only."""
    with served(FEW) as running:
        yield running


def secret(at: int) -> str:
    draw = random.Random(at)
    return "".join(draw.choices("bcdfghjklmnpqrstvwxz", k=12))


def test_canaries_stay_where_they_are(cramped: Running) -> None:
    """Eight at a time, on one prefix, preempted: each repeats its own secret and no other."""
    secrets = [secret(i) for i in range(24)]
    shared = "Once there was a big house and a small dog who lived in it. "
    bodies = []
    for i, canary in enumerate(secrets):
        ids = cramped.post("/tokenize", {"prompt": canary}).json["tokens"]
        bodies.append(
            {"prompt": shared + canary, "max_tokens": 70, "temperature": 0, "logprobs": 1,
             "ignore_eos": True, "allowed_token_ids": sorted(set(ids)), "echo": bool(i % 2)}
        )  # fmt: skip
    alone = [cramped.post("/v1/completions", body).json["choices"] for body in bodies]
    before = preempted(cramped)
    got = [reply.json["choices"] for reply in together(cramped, bodies)]
    assert preempted(cramped) > before, "nobody was preempted"
    assert got == alone
    for i, choices in enumerate(got):
        for j, canary in enumerate(secrets):
            assert (canary in choices[0]["text"]) == (i == j and i % 2 == 1)
    assert cramped.empty()


def preempted(server: Running) -> float:
    rows = server.get("/metrics").body.decode().splitlines()
    (row,) = [row for row in rows if row.startswith("vllm:num_preemptions_total")]
    return float(row.rsplit(" ", 1)[1])


def cached(server: Running, prompt: str, salt: str | None) -> int:
    own = {} if salt is None else {"cache_salt": salt}
    got = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **own})
    assert got.status == 200, got.body
    found: int = got.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_salt_hides_prompts_of_others(server: Running) -> None:
    prompt = " ".join(random.Random(9).choices(WORDS, k=90))
    assert cached(server, prompt, "ours") == 0
    assert cached(server, prompt, "ours") > 0
    for other in (None, "theirs", "our", "ours ", "OURS"):
        assert cached(server, prompt, other) == 0, other
    server.post("/reset_prefix_cache", {})
    assert cached(server, prompt, "ours") == 0


@pytest.mark.parametrize("shared", [False, True])
def test_a_key_does_not_see_prompts_of_another(shared: bool) -> None:
    with served({}, {"keys": ["alice", "bob"], "share_prefix_cache": shared}) as server:
        prompt = " ".join(random.Random(9).choices(WORDS, k=90))

        def found(key: str, **more: str) -> int:
            body = {"prompt": prompt, "max_tokens": 1, **more}
            got = server.post("/v1/completions", body, Authorization=f"Bearer {key}")
            return int(got.json["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert found("alice") == 0 and found("alice") > 0
        assert (found("bob") > 0) is shared and found("bob") > 0
        assert found("alice", cache_salt="a") == 0 and found("alice", cache_salt="a") > 0
        assert (found("bob", cache_salt="a") > 0) is shared
        talk = [{"role": "user", "content": prompt[::-1]}]
        message = {"model": "stories", "max_tokens": 1, "messages": talk}
        said = [
            server.ask("POST", "/v1/messages", message, {"x-api-key": key}).json["usage"]
            for key in ("alice", "bob", "bob")
        ]
        assert [one["cache_read_input_tokens"] > 0 for one in said] == [False, shared, True]


def test_choices_of_one_request_do_not_reach_another(cramped: Running) -> None:
    body = {"prompt": "The cat", "n": 4, "max_tokens": 30, "temperature": 1, "ignore_eos": True}
    bodies = [{**body, "seed": seed} for seed in range(6)]
    alone = [cramped.post("/v1/completions", one).json["choices"] for one in bodies]
    assert [reply.json["choices"] for reply in together(cramped, bodies)] == alone
