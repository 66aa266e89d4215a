"""Admission: the Retry-After of a client, and what it costs to let thousands in."""

import time

import pytest

from flyweight.server.admission.queue import PACE_OVER, AdmissionQueue
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError

WIDE = ServerSettings(max_queued_requests=1 << 20, max_queued_tokens=1 << 30)


def spent(prompts: int) -> float:
    """Processor seconds for the prompts of one request to leave the queue one by one."""
    door = AdmissionQueue(WIDE)
    place = door.enter(prompts, 5 * prompts)
    began = time.thread_time()
    for _ in range(prompts):
        door.leave(place, 1, 5)
    took = time.thread_time() - began
    assert (door.requests, door.tokens) == (0, 0)
    return took


def test_leaving_the_queue_costs_as_much_among_thousands() -> None:
    few = min(spent(1000) for _ in range(5))
    assert min(spent(16000) for _ in range(3)) < 48 * few, "16 times as much, and noise"


def test_retry_after_is_the_time_of_half_the_queue() -> None:
    now = [1000.0]
    door = AdmissionQueue(WIDE, clock=lambda: now[0])
    assert door.estimate_wait() == 5, "nothing is known yet"
    place = door.enter(10, 1000)
    for _ in range(4):
        door.leave(place, 1, 100)
        now[0] += 1.0
    assert door.estimate_wait() == 8, "600 wait, and 400 left within 10 s"
    now[0] += PACE_OVER - 2.5
    assert door.estimate_wait() == 15, "two of the four are too long ago"
    now[0] += PACE_OVER
    assert door.estimate_wait() == 5, "all are"


def test_nothing_is_prepared_for_a_server_that_ends() -> None:
    """Nor let in, where it was being prepared before."""
    door = AdmissionQueue(WIDE)
    door.begin_preparation()
    door.draining = True
    for come in (door.begin_preparation, lambda: door.enter(1, 5)):
        with pytest.raises(HttpError) as caught:
            come()
        assert caught.value.status == 503 and caught.value.code == "draining"
    assert door.preparing == 1 and door.requests == 0
