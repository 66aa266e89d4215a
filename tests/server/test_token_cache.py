"""Token ids of earlier prompts: the same ids, a bound, and a cache for each tenant."""

import re
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flyweight.describe import ASSETS, open_tokenizer
from flyweight.requests.token_cache import OVERHEAD, SHORTEST, CachedCodec, TokenCache, count_bytes
from flyweight.text.tokenizer import Tokenizer
from http_server import Running, served

TEXT = "Once upon a time there was a little owl who lived in a tree. " * 8
KEYS = ["sk-first", "sk-second"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_tokenizer(ASSETS / "stories.gguf")


class Counting:
    """Counts queries and hits."""

    def __init__(self, tokenizer: Tokenizer, most: int = 1 << 20) -> None:
        self.tokenizer = tokenizer
        self.queries: list[bool] = []
        self.cache = TokenCache(most, self.queries.append)

    def of(self, tenant: str, salt: str = "") -> Tokenizer:
        codec = CachedCodec(self.tokenizer.codec, self.cache, tenant, salt)
        return replace(self.tokenizer, codec=codec)

    def found(self, tenant: str, text: str, **options: bool) -> bool:
        """Whether the ids were known; they are right in any case."""
        assert self.of(tenant).encode(text, **options) == self.tokenizer.encode(text, **options)
        return self.queries[-1]


def test_ids_are_found_again(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    assert [counting.found("a", TEXT) for _ in range(3)] == [False, True, True]
    changed = counting.of("a").encode(TEXT)
    changed.clear()
    assert counting.found("a", TEXT), "each has ids of its own"
    odd = TEXT + "\ud800 </s> \u00e9\U0001f642"
    assert [counting.found("a", odd) for _ in range(2)] == [False, True]


def test_other_options_are_other_ids(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    marked = TEXT + "</s>"
    flags = [(special, parsed) for special in (True, False) for parsed in (True, False)]
    for known in (False, True):
        for special, parsed in flags:
            got = counting.found("a", marked, add_special=special, parse_special=parsed)
            assert got is known, (special, parsed)


@pytest.mark.parametrize("other", ["", "b", "aa", "A", "\ud800"])
def test_no_tenant_finds_what_another_has_left(tokenizer: Tokenizer, other: str) -> None:
    counting = Counting(tokenizer)
    assert not counting.found("a", TEXT) and not counting.found(other, TEXT)
    assert counting.found("a", TEXT) and counting.found(other, TEXT)


def test_a_tenant_and_a_text_read_like_no_other_pair(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    assert not counting.found("a", "b" + TEXT) and not counting.found("ab", TEXT)


def test_what_was_used_longest_ago_goes_first(tokenizer: Tokenizer) -> None:
    texts = [f"{i} {TEXT}" for i in range(4)]
    (size,) = {4 * len(tokenizer.encode(text)) + OVERHEAD for text in texts}
    counting = Counting(tokenizer, 3 * size)
    for text in texts[:3]:
        assert not counting.found("a", text)
    assert counting.found("a", texts[0]) and counting.cache.held == 3 * size
    assert not counting.found("a", texts[3]) and counting.cache.held == 3 * size
    assert [counting.found("a", texts[i]) for i in (0, 2, 3)] == [True] * 3
    assert not counting.found("a", texts[1])


def test_a_tenant_drops_its_own_before_those_of_others(tokenizer: Tokenizer) -> None:
    texts = [f"{i} {TEXT}" for i in range(9)]
    (size,) = {4 * len(tokenizer.encode(text)) + OVERHEAD for text in texts}
    counting = Counting(tokenizer, 4 * size)
    assert not counting.found("a", texts[0]) and not counting.found("a", texts[1])
    for i, text in enumerate(texts):  # with salts of its own, which make it no further tenant
        counting.of("b", salt=str(i)).encode(text)
    assert [counting.found("a", texts[i]) for i in (0, 1)] == [True, True]
    counting.of("b", salt="8").encode(texts[8])
    assert counting.queries[-1] and counting.cache.held == 4 * size
    for text in texts[2:]:
        counting.of("a").encode(text)
    counting.of("b", salt="8").encode(texts[8])
    assert counting.queries[-1], "b holds no more than half"


def test_what_is_larger_than_the_cache_is_not_kept(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer, OVERHEAD + 4)
    assert [counting.found("a", TEXT) for _ in range(2)] == [False, False]
    assert counting.cache.held == 0


def test_a_text_that_two_threads_read_is_kept_once() -> None:
    cache = TokenCache(1 << 20)
    for ids in ([1, 2, 3], [1, 2, 3]):
        cache.keep(b"key", ids)
    found = cache.find(b"key")
    assert found == [1, 2, 3] and cache.held == 3 * 4 + OVERHEAD
    assert count_bytes(array("i", [1, 2, 3])) == cache.held


def test_short_texts_are_not_looked_up(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    short = "x" * (SHORTEST - 1)
    assert counting.of("a").encode(short) == tokenizer.encode(short) and counting.queries == []


# --- a server ---


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with served(server={"keys": KEYS}) as running:
        yield running


def counts(server: Running) -> tuple[int, int]:
    """Texts that were looked up, and found."""
    page = server.get("/metrics", Authorization=f"Bearer {KEYS[0]}").body.decode()
    names = ("queries", "hits")
    found = [re.findall(rf"^flyweight:token_cache_{n}_total{{.*}} (\S+)$", page, re.M)
             for n in names]  # fmt: skip
    return int(float(found[0][0])), int(float(found[1][0]))


def ask(server: Running, key: int, path: str, body: dict[str, Any]) -> Any:
    given = {"max_tokens": 4, "temperature": 0, **body}
    got = server.post(path, given, Authorization=f"Bearer {KEYS[key]}")
    assert got.status == 200, got.body
    return got.json["choices"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "A. " + TEXT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "B. " + TEXT}]}),
    ],
)
def test_a_repeated_prompt_is_counted(locked: Running, path: str, body: dict[str, Any]) -> None:
    queries, hits = counts(locked)
    whole = ask(locked, 0, path, body)
    assert counts(locked) == (queries + 1, hits)
    assert ask(locked, 0, path, body) == whole and counts(locked) == (queries + 2, hits + 1)
    assert ask(locked, 1, path, body) == whole, "another key"
    salted = {**body, "cache_salt": "x"}
    assert ask(locked, 0, path, salted) == whole, "another salt"
    assert counts(locked) == (queries + 4, hits + 1)
    assert ask(locked, 0, path, salted) == whole and counts(locked) == (queries + 5, hits + 2)
