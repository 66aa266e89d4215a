"""Blocks of peers in the engine: which sequences wait for them, how long, and what they get.

Time is simulated, and peers send blocks when a test says so.
"""

from threading import Event as ThreadEvent
from typing import Any

import pytest
from mock_peers import PROMPT, B, MockPeer, World
from oracle import answer

from flyweight.engine.peer_blocks import FIND, GRACE, UNMEASURED
from flyweight.kv.store import BlockStore

OTHER = (5, 4, 3)  # no full block


@pytest.fixture
def store() -> BlockStore:
    """What an engine has saved that computed `PROMPT`."""
    world = World([])
    request = world.add("first")
    world.finish()
    world.save()
    assert tuple(world.texts["first"]) == answer(request, 0)
    assert len(world.store.entries) >= 5
    return world.store


def test_blocks_of_a_peer_are_not_computed(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    request = world.add("r")
    world.step()
    assert peer.log == ["find"] and world.metrics.computed == 0 and world.pauses == 1
    peer.reply()
    world.step()
    assert peer.log == ["find", "get 5"]
    peer.send(2, end=False)
    world.step(2)
    assert world.metrics.peer_hits == 2 * B and world.metrics.computed == 0
    peer.send()
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0)
    assert world.cached["r"] == world.metrics.peer_hits == world.metrics.external_hits == 5 * B
    assert world.metrics.external_queries == len(PROMPT)
    assert world.metrics.computed == len(PROMPT) - 5 * B + 2
    assert world.metrics.peer_bytes == 5 * store.size and world.metrics.peer_given_up == 0
    assert not world.peers.waits
    world.save()
    assert world.store.count_stored(list(store.entries)[:5]) == 5, "they are saved here too"


def test_it_is_looked_up_once(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    for id in ("r", "again"):
        request = world.add(id)
        world.step()
        peer.reply(3)
        world.step()
        peer.send()
        world.finish()
        assert tuple(world.texts[id]) == answer(request, 0)
    assert peer.log == ["find", "get 3"], "the second finds all in the pool"


def test_a_miss_is_computed_at_once(store: BlockStore) -> None:
    peers = [MockPeer("a", None), MockPeer("b", None), MockPeer("c", store)]
    peers[2].usable = False
    world = World(peers)
    request = world.add("r")
    world.step()
    peers[0].reply()
    world.step()
    assert world.metrics.computed == 0, "another may have them"
    peers[1].reply()
    world.step()
    assert world.metrics.computed == len(PROMPT)
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0)
    assert [peer.log for peer in peers] == [["find"], ["find"], []]
    assert world.metrics.peer_given_up == 0


def test_quick_peers_answer_before_the_step(store: BlockStore) -> None:
    """One that has nothing costs no step; a slow one is not waited for."""
    for latency, has, computed in ((0.001, False, 22), (0.001, True, 0), (0.1, False, 0)):
        peer = MockPeer("a", store if has else None)
        peer.quick, peer.latency = True, latency
        world = World([peer])
        world.add("r")
        world.step()
        assert world.metrics.computed == computed
        assert peer.log == ["find", "get 5"] if has else ["find"]
        assert len(world.peers.waits) == (not computed)
        world.step()
        if has:
            peer.send()
        world.finish()
        assert world.cached["r"] == 5 * B * has


def test_a_step_waits_for_answers_for_a_moment_only(store: BlockStore) -> None:
    """The peer was quick before, and says nothing now."""
    peer = MockPeer("a", store)
    peer.latency = 0.001
    world = World([peer])
    waited: list[float] = []

    class Silence(ThreadEvent):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waited.append(timeout)
            world.now += timeout
            return False

    world.peers._news = Silence()
    world.add("r")
    world.step()
    assert waited == [GRACE] and world.metrics.computed == 0
    world.add("other", PROMPT[::-1])
    world.step()
    assert waited == [GRACE, GRACE], "each step has its own"


@pytest.mark.parametrize("known", [None, 0.5])
def test_a_peer_that_does_not_answer_is_given_up(store: BlockStore, known: float | None) -> None:
    peer, slow = MockPeer("a", store), MockPeer("b", store)
    world = World([peer, slow])
    world.peers.estimate = lambda tokens: known
    world.add("r")
    world.step()
    peer.reply(2)
    limit = min(FIND, known or UNMEASURED)
    world.now = limit - 0.01
    world.step()
    assert peer.log == ["find"]
    world.now = limit
    world.step()
    assert peer.log == ["find", "get 2"], "what one has found is fetched"
    slow.reply()
    peer.send()
    world.finish()
    assert slow.log == ["find"] and world.cached["r"] == 2 * B


def test_nothing_is_requested_where_it_does_not_pay(store: BlockStore) -> None:
    """Prefill takes 0.1 s a block, this peer 0.1 s and more."""
    for seconds, log in ((0.1, []), (0.099, ["find", "get 5"])):
        peer = MockPeer("a", store, seconds)
        world = World([peer])
        world.peers.estimate = lambda tokens: tokens / B / 10
        world.add("r")
        world.step()
        peer.reply()
        world.step()
        assert peer.log == log
        assert (world.metrics.computed > 0) == (not log)


def test_the_peer_that_saves_most_time_sends(store: BlockStore) -> None:
    """5 blocks at 0.08 s save 0.1 s, 4 blocks at 0.01 s save 0.36 s, 1 block at 0 s saves 0.1 s."""
    peers = [MockPeer("a", store, 0.08), MockPeer("b", store, 0.01), MockPeer("c", store)]
    world = World(peers)
    world.peers.estimate = lambda tokens: tokens / B / 10
    request = world.add("r")
    world.step()
    for peer, most in zip(peers, (5, 4, 1), strict=True):
        peer.reply(most)
    world.step()
    assert [peer.log for peer in peers] == [["find"], ["find", "get 4"], ["find"]]
    peers[1].send()
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0) and world.cached["r"] == 4 * B


def test_a_find_that_does_not_pay_is_given_up(store: BlockStore) -> None:
    peer = MockPeer("a", store, 0.05)
    world = World([peer])
    world.peers.estimate = lambda tokens: tokens / B / 10
    world.add("r")
    world.step()
    peer.seconds = 0.2  # another transfer was slow meanwhile
    peer.reply()
    world.step()
    assert peer.log == ["find"] and world.metrics.peer_given_up == 1
    assert world.metrics.computed == len(PROMPT)


@pytest.mark.parametrize("known", [None, 2.0])
def test_the_deadline_is_the_time_to_compute_it(store: BlockStore, known: float | None) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    world.peers.estimate = lambda tokens: known
    request = world.add("r")
    world.step()
    peer.reply()
    world.step()
    world.now = (known or UNMEASURED) - 0.01
    world.step()
    assert world.metrics.computed == 0
    world.now += 0.01
    world.step()
    assert world.metrics.computed == len(PROMPT) and peer.log == ["find", "get 5", "cancel"]
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0)
    assert world.metrics.peer_given_up == 1 and world.metrics.peer_hits == 0
    assert not world.peers.waits


def test_the_rest_is_given_up_when_it_is_quicker_to_compute(store: BlockStore) -> None:
    """Prefill takes 0.1 s a block.  At 0.1 s a block it goes on, above that it is given up."""
    peer = MockPeer("a", store)
    world = World([peer])
    world.peers.estimate = lambda tokens: tokens / B / 10
    request = world.add("r")
    world.step()
    peer.reply()
    world.step()
    peer.send(1, end=False)
    world.now = 0.1
    world.step()
    assert peer.log == ["find", "get 5"]
    peer.send(1, end=False)
    world.now = 0.21
    world.step()
    assert peer.log == ["find", "get 5", "cancel"]
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0)
    assert world.cached["r"] == world.metrics.peer_hits == 2 * B, "what has arrived is used"


def test_a_peer_that_dies_leaves_what_it_has_sent(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    request = world.add("r")
    world.step()
    peer.reply()
    world.step()
    peer.send(3)
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0)
    assert world.cached["r"] == 3 * B and world.metrics.peer_given_up == 1


def test_others_start_while_one_waits(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    world.add("r")
    world.step()
    other = world.add("other", OTHER)
    world.step(3)
    assert tuple(world.texts["other"]) == answer(other, 0) and world.done == ["other"]
    assert world.pauses == 1, "no pause while something is computed"
    peer.reply()
    world.step()
    peer.send()
    world.finish()
    assert world.cached["r"] == 5 * B


def test_a_waiting_sequence_keeps_its_seat(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer], seqs=1)
    world.add("r")
    world.add("other", OTHER)
    world.step(3)
    assert world.metrics.computed == 0
    peer.reply()
    world.step()
    peer.send()
    world.finish()
    assert world.done == ["r", "other"]


def test_equal_prompts_are_fetched_once(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    requests = [world.add(id) for id in "rst"]
    world.step()
    assert peer.log == ["find"]
    peer.reply()
    world.step()
    peer.send()
    world.finish()
    assert peer.log == ["find", "get 5"]
    for request in requests:
        assert tuple(world.texts[request.id]) == answer(request, 0)
        assert world.cached[request.id] == 5 * B


def test_tenants_never_share(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    request = world.add("r", salt="another")
    world.step()
    peer.reply()
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0)
    assert peer.log == ["find"] and world.cached["r"] == 0


def test_an_abort_ends_the_transfer(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    world.add("r")
    world.step()
    peer.reply()
    world.step()
    fetch = peer.getting[0][0]
    peer.send(2, end=False)
    world.engine.abort("r")
    request = world.add("other", OTHER)
    world.step()
    assert fetch.cancelled and fetch.empty and peer.log == ["find", "get 5", "cancel"]
    world.finish()
    assert tuple(world.texts["other"]) == answer(request, 0)


def test_an_interrupt_leaves_the_same_answer(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    request = world.add("r")
    world.step()
    peer.reply()
    world.step()
    peer.send(2, end=False)
    write = world.kv.write

    def interrupt(block: int, data: Any) -> None:
        world.kv.write = write  # type: ignore[method-assign]
        raise KeyboardInterrupt

    world.kv.write = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.step()
    peer.send()
    world.now = 2 * UNMEASURED
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0)


def test_a_reset_and_an_end_give_up_all(store: BlockStore) -> None:
    peer = MockPeer("a", store)
    world = World([peer])
    request = world.add("r")
    world.step()
    peer.reply()
    world.step()
    peer.send(2, end=False)
    world.engine.reset_prefix_cache()
    world.finish()
    assert tuple(world.texts["r"]) == answer(request, 0) and world.cached["r"] == 0
    world.engine.close()
    assert peer.log[-1] == "close"
