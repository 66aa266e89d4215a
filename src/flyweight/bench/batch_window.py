"""Dynamic batching on a simulated clock: requests that come within a window are computed together.

Invariant: nothing waits for real time, so a timeline is the same on every machine.  A batch starts
when the engine is free, and either the oldest waiting request has waited for the whole window or
there are enough requests.  Times are in milliseconds.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from flyweight.config import whole
from flyweight.errors import ConfigError

MOST_ARRIVALS, MOST_BATCH = 10_000, 4096
LEAST_MS, MOST_MS = 0.001, 1e9


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """`wait` is the window, `preferred` the number of requests that starts a batch at once.  One
    request alone takes `single`, `preferred` of them `batch`; in between the time is linear.
    Raises `ConfigError`.
    """

    wait: float = 5.0
    preferred: int = 5
    single: float = 400.0
    batch: float = 1000.0

    def __post_init__(self) -> None:
        check_ms("batch_wait_ms", self.wait)
        whole("preferred_batch", self.preferred, 1, MOST_BATCH)
        check_ms("single_ms", self.single, LEAST_MS)
        check_ms("batch_ms", self.batch, LEAST_MS)

    def count_ms(self, requests: int) -> float:
        """What so many requests take together."""
        more = (self.batch - self.single) / max(1, self.preferred - 1)
        return self.single + more * (requests - 1)


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """`queue` are the requests that wait, by number from 1, before a batch takes them; the oldest
    has waited for `waited`.  `started` requests start together.
    """

    at: float
    arrived: tuple[int, ...]
    queue: tuple[int, ...]
    waited: float
    started: int


@dataclass(slots=True)
class BatchTimeline:
    """What became of each request, in the order of their arrivals."""

    arrivals: Sequence[float]
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    events: list[TimelineEvent] = field(default_factory=list)

    @property
    def latencies(self) -> list[float]:
        return [end - at for end, at in zip(self.ends, self.arrivals, strict=True)]

    @property
    def mean(self) -> float:
        return sum(self.latencies) / len(self.latencies)

    @property
    def last(self) -> float:
        """When the last batch ends."""
        return max(self.ends)


def simulate_window(window: BatchWindow, arrivals: Sequence[float]) -> BatchTimeline:
    """The timeline of requests that arrive at these times.  Raises `ConfigError`."""
    check_arrivals(arrivals)
    found = BatchTimeline(arrivals)
    coming = deque(enumerate(arrivals, 1))
    queue: deque[tuple[int, float]] = deque()
    free = 0.0  # when the engine is
    while coming or queue:
        now = min(coming[0][1] if coming else inf, _find_start(window, queue, free))
        new = []
        while coming and coming[0][1] <= now:
            new.append(coming.popleft())
        queue += new
        waiting, waited = tuple(number for number, _ in queue), now - queue[0][1]
        started = 0
        if _find_start(window, queue, free) <= now:
            started = min(window.preferred, len(queue))
            free = now + window.count_ms(started)
            for _ in range(started):
                queue.popleft()
            found.starts += [now] * started
            found.ends += [free] * started
        numbers = tuple(number for number, _ in new)
        found.events.append(TimelineEvent(now, numbers, waiting, waited, started))
    return found


def _find_start(window: BatchWindow, queue: Sequence[tuple[int, float]], free: float) -> float:
    """When the next batch starts if nothing more arrives."""
    if not queue:
        return inf
    if len(queue) >= window.preferred:
        ready = queue[window.preferred - 1][1]  # since this one arrived
    else:
        ready = queue[0][1] + window.wait
    return max(free, min(ready, queue[0][1] + window.wait))


def check_ms(name: str, value: float, least: float = 0.0) -> None:
    """Raises `ConfigError`."""
    if not least <= value <= MOST_MS:
        raise ConfigError(
            "is out of range",
            name,
            value=value,
            allowed=f"milliseconds, {least:g} to {MOST_MS:.0f}",
            hint=f"nearest valid: {MOST_MS if value > MOST_MS else least:.10g}",
        )


def check_arrivals(arrivals: Sequence[float]) -> None:
    """Raises `ConfigError`."""
    if not 1 <= len(arrivals) <= MOST_ARRIVALS:
        raise ConfigError(f"arrivals has {len(arrivals)} times; allowed: 1 to {MOST_ARRIVALS}")
    for before, at in zip([0.0, *arrivals], arrivals, strict=False):
        check_ms("arrivals", at)
        if at < before:
            raise ConfigError(
                f"is earlier than the {before:g} ms before it; sort the times", "arrivals", value=at
            )
