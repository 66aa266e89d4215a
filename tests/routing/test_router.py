"""Which replica gets a request, and the work that is counted there."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.errors import ConfigError
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import (
    POLICIES,
    LongestPrefixPolicy,
    RoutingOptions,
    make_policy,
)
from flyweight.routing.replica import REQUEST_TOKENS
from flyweight.routing.router import Router

BLOCK = 4
KEYS = RoutingKeys("model", b"secret", BLOCK)
BOUND, POPULAR = 200, 8


def make_router(policy: str = "prefix", replicas: int = 3, blocks: int = 64) -> Router:
    router = Router(make_policy(policy, RoutingOptions(BOUND, POPULAR)), BLOCK)
    for name in "abcdefgh"[:replicas]:
        router.add_replica(name, blocks)
    return router


def send(router: Router, id: str, tokens: Sequence[int], salt: str = "") -> tuple[str, int]:
    """The replica, and how many blocks should be cached there."""
    route = router.begin(id, KEYS.make_keys(tokens, salt), len(tokens))
    assert route is not None
    return route.replica.name, route.cached


def draw(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000) for _ in range(count)]


def test_a_conversation_stays_where_its_cache_is() -> None:
    """Two conversations in turns, each one longer by a block at every turn."""
    router, rng = make_router(), random.Random(0)
    talks, seen = [draw(rng, 21), draw(rng, 21)], list[tuple[str, int]]()
    for turn in range(5):
        for number, talk in enumerate(talks):
            seen.append(send(router, f"{number} {turn}", talk))
            router.finish(f"{number} {turn}")
            talk.extend(draw(rng, BLOCK))
    assert seen == [
        ("a", 0), ("b", 0), ("a", 5), ("b", 5), ("a", 6), ("b", 6), ("a", 7), ("b", 7), ("a", 8),
        ("b", 8),
    ]  # fmt: skip


def test_a_replica_that_is_busier_by_more_than_the_bound_is_passed_over() -> None:
    """The next best is the one with the next longest prefix, not the least busy one."""
    router, rng = make_router(), random.Random(1)
    head, tail = draw(rng, 20), draw(rng, 21)
    assert send(router, "long", head + tail) == ("a", 0)
    router.finish("long")
    router.begin("load", [], BOUND)  # to "b", which was not chosen yet
    assert [one.work for one in router.replicas] == [0, BOUND + REQUEST_TOKENS, 0]
    router.finish("load")
    assert send(router, "head", [*head, 1]) == ("a", 5)
    router.finish("head")

    policy = router.policy
    assert isinstance(policy, LongestPrefixPolicy)
    policy.indexes["c"].use(KEYS.make_keys([*head, 1]))
    busy = router.replicas[0]
    busy.tokens += BOUND
    assert send(router, "at the bound", head + tail) == ("a", 10)
    router.finish("at the bound")
    busy.tokens += 1
    assert send(router, "above it", head + tail) == ("c", 5)


def test_equal_prefixes_go_to_the_least_busy_then_to_the_one_chosen_longest_ago() -> None:
    router, rng = make_router(), random.Random(2)
    assert [send(router, str(i), draw(rng, 21))[0] for i in range(3)] == ["a", "b", "c"]
    router.finish("1")
    assert send(router, "3", draw(rng, 21)) == ("b", 0)
    for id in "0", "2", "3":
        router.finish(id)
    assert send(router, "4", draw(rng, 21)) == ("a", 0)


def test_what_many_prompts_begin_with_is_copied_to_all_replicas() -> None:
    """Two blocks are common; after so many uses they no longer keep requests on one replica."""
    router, rng = make_router(), random.Random(3)
    common, seen = draw(rng, 2 * BLOCK), list[tuple[str, int]]()
    for number in range(3 * POPULAR + 4):
        seen.append(send(router, str(number), common + draw(rng, BLOCK + 1)))
        router.finish(str(number))
    each = [[(name, 0), *[(name, 2)] * (POPULAR - 1)] for name in "abc"]
    assert seen == [*each[0], *each[1], *each[2], ("a", 2), ("b", 2), ("c", 2), ("a", 2)]


def test_a_long_conversation_stays_when_its_beginning_is_popular() -> None:
    router, rng = make_router(), random.Random(4)
    talk = draw(rng, 9)
    for turn in range(3 * POPULAR):
        cached = 0 if turn == 0 else turn + 1
        assert send(router, str(turn), talk) == ("a", cached)
        router.finish(str(turn))
        talk.extend(draw(rng, BLOCK))


def test_tenants_do_not_share_equal_prompts() -> None:
    router, tokens = make_router(), list(range(41))
    assert send(router, "1", tokens, "one") == ("a", 0)
    router.finish("1")
    assert send(router, "2", tokens, "two") == ("b", 0)
    router.finish("2")
    assert send(router, "3", tokens, "one") == ("a", 10)
    assert send(router, "4", tokens, "two") == ("b", 10)


def test_work_is_what_is_outstanding() -> None:
    router, tokens = make_router(replicas=1), list(range(41))
    [only] = router.replicas
    send(router, "1", tokens)
    assert (only.requests, only.tokens) == (1, 41)
    send(router, "2", tokens)  # of which ten blocks are expected to be cached
    assert (only.requests, only.tokens, only.work) == (2, 42, 42 + 2 * REQUEST_TOKENS)
    router.finish("1")
    router.finish("2")
    assert (only.requests, only.tokens, only.work) == (0, 0, 0)


def test_a_replica_that_is_removed_loses_its_requests_and_its_cache() -> None:
    router, tokens = make_router(), list(range(41))
    assert send(router, "1", tokens) == ("a", 0)
    assert send(router, "2", [7] * 41) == ("b", 0)
    assert router.remove_replica("a") == ["1"]
    router.finish("1")  # is ignored
    assert send(router, "1", tokens) == ("c", 0)
    router.add_replica("a", 64)
    assert send(router, "3", [9] * 41) == ("a", 0), "the least busy"
    for name in "abc":
        router.remove_replica(name)
    assert router.begin("4", [], 5) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replica_that_is_paused_keeps_its_work_and_its_cache(policy: str) -> None:
    router, tokens = make_router(policy, replicas=2), list(range(41))
    place, _ = send(router, "1", tokens)
    paused = next(one for one in router.replicas if one.name == place)
    router.pause_replica(place)
    places = {send(router, str(i), tokens)[0] for i in range(2, 8)}
    assert place not in places and len(places) == 1
    assert paused.requests == 1 and paused.tokens == 41
    router.pause_replica(*places)
    assert router.begin("8", [], 5) is None, "all are paused"
    for i in range(2, 8):
        router.finish(str(i))
    router.resume_replica(place)
    cached = 10 if policy == "prefix" else 0
    assert send(router, "9", tokens) == (place, cached) and paused.requests == 2
    router.finish("1")
    router.finish("9")
    assert paused.work == 0
    assert router.remove_replica(*places) == [], "also where it is paused"


def test_names_of_replicas_are_checked() -> None:
    router = make_router(replicas=2)
    with pytest.raises(ConfigError, match="replica = 'a' is the name of a replica already"):
        router.add_replica("a", 1)
    with pytest.raises(ConfigError, match="replica = 'x' is no replica; allowed: a, b"):
        router.remove_replica("x")
    with pytest.raises(ConfigError, match="replica = 'x' is no replica"):
        router.pause_replica("x")
    with pytest.raises(ConfigError, match="replica = 'x' is no replica"):
        router.resume_replica("x")


def test_round_robin_goes_on_in_turn_as_replicas_come_and_go() -> None:
    router = make_router("round-robin")
    names = [send(router, str(i), [0])[0] for i in range(4)]
    router.remove_replica("b")
    router.add_replica("d", 64)
    names += [send(router, str(i), [0])[0] for i in range(4, 9)]
    assert names == ["a", "b", "c", "a", "d", "c", "a", "d", "c"]


def test_power_of_two_takes_the_less_busy_and_repeats_with_its_seed() -> None:
    router = make_router("power-of-two", replicas=2)
    router.replicas[0].tokens += 1000
    assert {send(router, str(i), [0])[0] for i in range(10)} == {"b"}
    first, again = ([send(make, str(i), [0]) for i in range(20)] for make in (
        make_router("power-of-two", 8), make_router("power-of-two", 8)))  # fmt: skip
    assert first == again
    assert len({name for name, _ in first}) > 2


def test_unknown_policies_and_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"routing = 'prefx' is no routing policy .did you mean "
                       r"'prefix'.*allowed: prefix, round-robin, power-of-two"):  # fmt: skip
        make_policy("prefx")
    with pytest.raises(ConfigError, match=r"bound = -1 is out of range.*nearest valid: 0"):
        RoutingOptions(bound=-1)
    with pytest.raises(ConfigError, match=r"popular = 0 is out of range.*nearest valid: 1"):
        RoutingOptions(popular=0)


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 2**32))
def test_random_workloads(name: str, seed: int) -> None:
    """Requests come, end and are lost with replicas: a choice is a replica that is there, work is
    that of unfinished requests, indexes keep their bound, and `prefix` keeps to the bound of load.
    """
    rng = random.Random(seed)
    router, live, added = make_router(name, blocks=16), dict[str, tuple[str, int]](), 3
    heads = [draw(rng, 24) for _ in range(4)]
    for number in range(60):
        action = rng.random()
        if action < 0.1 and len(router.replicas) > 1:
            gone = rng.choice(router.replicas).name
            lost = [id for id, (place, _) in live.items() if place == gone]
            assert router.remove_replica(gone) == lost
            live = {id: one for id, one in live.items() if one[0] != gone}
        elif action < 0.15:
            router.add_replica(f"r{added}", rng.randrange(32))
            added += 1
        elif action < 0.4 and live:
            id = rng.choice(list(live))
            router.finish(id)
            del live[id]
        else:
            tokens = rng.choice(heads)[: rng.randrange(1, 24)] + draw(rng, rng.randrange(1, 90))
            work = {one.name: one.work for one in router.replicas}
            place, cached = send(router, str(number), tokens)
            if name == "prefix":
                assert work[place] - min(work.values()) <= BOUND
            live[str(number)] = place, len(tokens) - cached * BLOCK
        check_work(router, live)


def check_work(router: Router, live: dict[str, tuple[str, int]]) -> None:
    tokens, requests = Counter[str](), Counter(place for place, _ in live.values())
    for place, count in live.values():
        tokens[place] += count
    seen = {one.name: (one.requests, one.tokens) for one in router.replicas}
    assert seen == {name: (requests[name], tokens[name]) for name in seen}
    if isinstance(router.policy, LongestPrefixPolicy):
        indexes = router.policy.indexes
        assert list(indexes) == [one.name for one in router.replicas]
        assert all(len(indexes[one.name]) <= one.blocks for one in router.replicas)
