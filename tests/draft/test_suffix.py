"""Suffix decoding: matches against a search that looks everywhere, tenants that never meet, bounded
memory, and texts that are the same with and without.
"""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import Answer, answers, engine, random_model, request

from flyweight.draft import suffix
from flyweight.draft.drafter import DraftRequest
from flyweight.draft.suffix import SuffixDrafter, SuffixRules
from flyweight.draft.suffixes import MOST_ENDS, SuffixIndex, count_common
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.types import Request


def propose(
    drafter: SuffixDrafter, tokens: list[int], limit: int = 8, id: str = "a", tenant: str = "",
    adapter: str = "",
) -> list[int]:  # fmt: skip
    asked = DraftRequest(id, array("i", tokens), (), limit, tenant=tenant, adapter=adapter)
    return list(drafter.propose([asked])[0].tokens)


def answer(drafter: SuffixDrafter, tokens: list[int], id: str, tenant: str = "") -> None:
    """A request that is answered with `tokens` after a prompt of one."""
    text = array("i", [999])
    for token in tokens:
        text.append(token)
        drafter.propose([DraftRequest(id, text, (), 0, tenant=tenant)])
    drafter.forget(id)


def search(tokens: list[int], depth: int) -> tuple[int, list[int]]:
    """The longest suffix that occurred before, of at most `depth` tokens, and where it ended."""
    for length in range(min(depth, len(tokens) - 1), 1, -1):
        ends = [e for e in range(length, len(tokens)) if tokens[e - length : e] == tokens[-length:]]
        if ends:
            return length, ends[::-1]
    return 0, []


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(2, 24))
def test_the_longest_match_is_found(tokens: list[int], depth: int) -> None:
    index = SuffixIndex()
    index.extend(tokens[: len(tokens) // 2])  # in two parts, as texts grow
    index.extend(tokens)
    text = array("i", tokens)
    length, ends = index.find(text, text[-depth:])
    expected, places = search(tokens, depth)
    assert (length, ends[:MOST_ENDS]) == (expected, places[:MOST_ENDS])


@given(st.lists(st.integers(0, 2), min_size=4, max_size=60), st.integers(2, 24), st.data())
def test_a_known_end_is_one_more_place_to_look(tokens, depth, data) -> None:
    index, text = SuffixIndex(), array("i", tokens)
    index.extend(text)
    known = data.draw(st.integers(1, len(tokens) - 1))
    length, ends = index.find(text, text[-depth:], known)
    assert length == search(tokens, depth)[0]
    assert all(count_common(text, end, text[-depth:]) == length for end in ends)
    assert len(set(ends)) == len(ends)


def test_long_texts_keep_their_chains() -> None:
    """Over several sizes of the table, against the same text indexed at once."""
    rng = np.random.default_rng(1)
    tokens = array("i", rng.integers(0, 40, 3000).tolist())
    grown, whole = SuffixIndex(), SuffixIndex()
    for stop in range(1, 3001, 7):
        grown.extend(tokens[:stop])
    grown.extend(tokens)
    whole.extend(tokens)
    for at in range(50, 3000, 97):
        context = tokens[at - 24 : at]
        assert grown.find(tokens, context) == whole.find(tokens, context)


def test_drafts_what_followed() -> None:
    drafter = SuffixDrafter(SuffixRules(max_spec_factor=4.0))
    assert propose(drafter, [1, 2, 3, 4, 5, 9, 1, 2], 4) == [3, 4, 5, 9]
    assert propose(drafter, [7] * 5, 3, "b") == [7, 7, 7]
    assert propose(drafter, [5, 6] * 4, 5, "c") == [5, 6, 5, 6, 5]
    for id, tokens in enumerate(([], [1], [1, 1], [1, 2, 3])):
        assert propose(drafter, tokens, 4, f"none{id}") == []
    assert propose(drafter, [1, 2, 3, 1, 2], 0, "d") == []


def test_the_length_follows_the_match_and_how_often_it_occurred() -> None:
    once = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    often = [*once[:9], 11, *once[:9], 12, *once[:9], 13, 1, 2, 3]
    assert propose(SuffixDrafter(), once) == [4, 5, 6]  # a match of 3, once
    assert propose(SuffixDrafter(), often) == [4, 5, 6, 7, 8]  # three times
    assert propose(SuffixDrafter(SuffixRules(max_spec_factor=2.0)), once) == [4, 5, 6, 7, 8, 9]
    assert propose(SuffixDrafter(SuffixRules(max_spec_factor=0.0)), once) == []


def test_the_most_frequent_continuation_wins_until_it_is_unlikely() -> None:
    text = [1, 2, 3, 0, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2]
    assert propose(SuffixDrafter(), text)[:1] == [3]  # twice, though 4 is newer
    likely = SuffixDrafter(SuffixRules(min_token_prob=0.6))
    assert propose(likely, text) == [3]  # 2/3; what follows it 1/3
    never = SuffixDrafter(SuffixRules(min_token_prob=0.9))
    assert propose(never, text) == []


def test_earlier_answers_of_the_tenant_are_known_and_no_others() -> None:
    drafter = SuffixDrafter()
    answer(drafter, [10, 11, 12, 13, 14, 15], "a", "one")
    assert propose(drafter, [3, 10, 11, 12], id="b", tenant="one") == [13, 14, 15]
    assert propose(drafter, [3, 10, 11, 12], id="c", tenant="two") == []
    assert propose(drafter, [3, 10, 11, 12], id="d") == []
    assert propose(drafter, [3, 10, 11, 12], id="e", tenant="one", adapter="x") == []


def test_a_draft_ends_where_an_answer_ended() -> None:
    drafter = SuffixDrafter(SuffixRules(max_spec_factor=9.0))
    answer(drafter, [10, 11, 12, 13], "a")
    answer(drafter, [20, 21, 22, 23], "b")
    assert propose(drafter, [11, 12], id="c") == [13]
    assert propose(drafter, [12, 13], id="d") == []


def test_a_preempted_answer_is_stored_once() -> None:
    drafter = SuffixDrafter()
    propose(drafter, [1, 2, 3, 4], id="a")
    drafter.forget("a")
    first = drafter.count_stored()
    propose(drafter, [1, 2, 3, 4, 5, 6], id="a")
    drafter.forget("a")
    assert drafter.count_stored() <= 2 * first + 3
    drafter.forget("never seen")


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_no_more_requests_are_stored(most: int) -> None:
    drafter = SuffixDrafter(SuffixRules(max_cached_requests=most))
    for i in range(20):
        answer(drafter, [100 * i + j for j in range(5)], str(i))
        assert sum(one.requests for one in drafter._generations) <= most
    found = propose(drafter, [1900, 1901, 1902], id="last")
    assert found == ([1903, 1904] if most else [])


def test_memory_is_bounded_whatever_tenants_there_are(monkeypatch) -> None:
    monkeypatch.setattr(suffix, "MOST_TOKENS", 400)
    drafter, rng = SuffixDrafter(), np.random.default_rng(2)
    for i in range(60):
        answer(
            drafter, rng.integers(0, 50, int(rng.integers(1, 300))).tolist(), str(i), f"t{i % 7}"
        )
        assert drafter.count_stored() <= 400
        assert len(drafter._generations) <= 2 and not drafter._live


# --- on a model ---

OPTIONS: tuple[dict[str, object], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20, "n": 3},
    {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 0, "presence_penalty": 0.8, "n": 2},
)
MIXES: dict[str, dict[str, object]] = {
    "plain": {"max_num_batched_tokens": 1024},
    "chunked": {"max_num_batched_tokens": 37, "max_chunk": 13},
    "tight": {"blocks": 12, "max_num_batched_tokens": 300},
    "no prefix cache": {"prefix_caching": False},
    "one at a time": {"max_num_seqs": 3},
}


def requests(count: int = 15) -> list[Request]:
    """Prompts that begin alike or repeat, with all kinds of options; three tenants."""
    rng = np.random.default_rng(5)
    stem = rng.integers(0, 331, 40).tolist()
    made = []
    for i in range(count):
        own = rng.integers(0, 331, int(rng.integers(1, 40))).tolist() * (1 + i % 2)
        tokens = stem + own if i % 3 == 0 else own
        one = request(f"r{i}", tokens, 24, seed=i, **OPTIONS[i % len(OPTIONS)])
        made.append(replace(one, salt=("", "x", "y")[i % 3]))
    return made


@pytest.fixture(scope="module")
def target() -> Decoder:
    return random_model(CpuOps(2), "q8_0")


@pytest.fixture(scope="module")
def truth(target: Decoder) -> dict[tuple[str, int], Answer]:
    """Without drafts, one request after the other."""
    found: dict[tuple[str, int], Answer] = {}
    for one in requests():
        found |= answers(engine(target, prefix_caching=False), [one])
    return found


@pytest.mark.parametrize("mix", MIXES)
def test_texts_are_the_same(target, truth, mix: str) -> None:
    made = engine(target, draft_tokens=6, **MIXES[mix])
    made.drafts.__init__(SuffixDrafter(), made.scheduler, made.metrics)
    assert answers(made, requests()) == truth
    first = replace(made.metrics)
    assert answers(made, requests()) == truth  # now the answers are known
    again = made.metrics.accepted - first.accepted
    assert again > 100 and again > first.accepted
    assert made.metrics.accepted < made.metrics.proposed
    assert not made.drafts.calls.ended and made.drafts.calls.drafter is not None
