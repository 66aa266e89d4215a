"""An exception at any line of the scheduler or the pool: a program's own signal handler may raise
anywhere.  Nothing is lost that was handed out, and all goes on.
"""

import sys
from collections.abc import Callable

import pytest
from workload import Harness, workload

FILES = ("engine/scheduler.py", "engine/lifecycle.py", "engine/prefix.py", "kv/blocks.py")
SEEDS = (3, 11, 29, 64)


class Tripwire:
    """Raises KeyboardInterrupt at the n-th line of `FILES` that a call executes."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, call: Callable):
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(None)

    def _enter(self, frame, event, arg):
        return self._line if frame.f_code.co_filename.endswith(FILES) else None

    def _line(self, frame, event, arg):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


def run(seed: int, step: int, at: int, method: str) -> tuple[Harness, bool]:
    """A workload whose `step`-th call of a scheduler's method is interrupted at its `at`-th line,
    and then stepped again.
    """
    harness, calls, hit = Harness(workload(seed)), [0], [False]
    real_step, real_method = harness.engine.step, getattr(harness.scheduler, method)

    def interrupted(*args):
        calls[0] += 1
        if calls[0] != step:
            return real_method(*args)
        return Tripwire(at)(lambda: real_method(*args))

    def stepped():
        try:
            return real_step()
        except KeyboardInterrupt:
            hit[0] = True
            return real_step()

    setattr(harness.scheduler, method, interrupted)
    harness.engine.step = stepped
    harness.run()
    return harness, hit[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("step", [2, 5, 9])
def test_an_interrupted_plan_changes_no_answer(seed, step):
    """The harness compares every answer with the oracle's and the pool with its tables."""
    at, hit = 0, True
    while hit:
        at += 1
        _, hit = run(seed, step, at, "schedule")
    assert at > 10, "the tripwire never fired"


@pytest.mark.parametrize("step", [2, 5])
def test_an_interrupted_commit_leaves_all_in_order(step):
    """Tokens that were being handed out are gone with the exception; the rest goes on."""
    at, hit = 0, True
    while hit:
        at += 1
        harness = Harness(workload(11))
        calls, real = [0], harness.scheduler.commit

        def commit(plan, produced, at=at, calls=calls, real=real):
            calls[0] += 1
            if calls[0] != step:
                return real(plan, produced)
            return Tripwire(at)(lambda: real(plan, produced))

        harness.scheduler.commit = commit
        hit = False
        for requests in harness.work.arrivals.values():
            for request in requests:
                harness.engine.add(request)
        for _ in range(2000):
            try:
                harness.engine.step()
            except KeyboardInterrupt:
                hit = True
            if not harness.engine.busy:
                break
        assert not harness.engine.busy and not harness.scheduler.by_id
        harness.scheduler.pool.check_integrity([])
    assert at > 10, "the tripwire never fired"
