"""The load of many replicas: copies of a trace over each other, and a sample of its conversations.

A rate above the trace's is copies of it that share no prefix, each moved in time; what is moved
beyond the end comes at the beginning.  Time is never compressed: turns of a conversation would then
come sooner than they do, and find more of their blocks.  A rate that is no whole number of copies,
or the share of some replicas, is a part of the conversations, chosen by a hash; a larger share has
all conversations of a smaller one.

Invariant: the same trace, rate and share give the same requests, in the order of their arrivals.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from flyweight.bench.serving.traces import TraceRequest
from flyweight.errors import ConfigError
from flyweight.planning.replica_run import ReplicaRequest
from flyweight.planning.replicas import TraceScale, spread_arrivals
from flyweight.routing.policies import POPULAR

COMMON = 0.01  # of all requests: a block that so many have says nothing of the conversation
GOLDEN = 0.618033988749895  # copies are moved by multiples of it, of the trace's time: evenly
MOST_COPIES = 100_000
MIX, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, slots=True, eq=False)
class TraceLoad:
    """`requests` of a trace, at `at` seconds of its `span`, and the number of the conversation of
    each; `copies` of it, of whose conversations the share `kept` comes.  `left_out` were longer
    than the model's context.
    """

    scale: TraceScale
    requests: Sequence[TraceRequest]
    at: NDArray[np.float64]
    talks: NDArray[np.uint64]
    span: float
    copies: int = 1
    kept: float = 1.0
    left_out: int = 0

    @classmethod
    def of(
        cls, trace: Iterable[TraceRequest], scale: TraceScale, longest: int, rate: float | None
    ) -> "TraceLoad":
        """Requests of at most `longest` tokens in all, at so many a second (None: the trace's own
        rate).  Raises `ConfigError`.
        """
        timed = spread_arrivals(trace)
        found = [(at, one) for at, one in timed if sum(scale.count_tokens(one)) <= longest]
        if not found:
            least = min((sum(scale.count_tokens(one)) for _, one in timed), default=0)
            why = f"the shortest request has {least} tokens" if timed else "it has no request"
            raise ConfigError(
                f"has no request for a context of {longest} tokens; {why}", "trace",
                hint="divide its lengths by a larger --trace-factor" if timed else "",
            )  # fmt: skip
        at = np.array([at for at, _ in found]) - found[0][0]
        requests = [one for _, one in found]
        span = float(at[-1]) * len(at) / max(1, len(at) - 1) or 1.0
        wanted = 1.0 if rate is None else rate * span / len(at)
        copies = max(1, ceil(wanted - 1e-9))
        if copies > MOST_COPIES:
            most = MOST_COPIES * len(at) / span
            raise ConfigError(f"is more than {MOST_COPIES:,} copies of the trace", "request_rate",
                              value=rate, hint=f"nearest valid: {most:.0f}")  # fmt: skip
        talks = np.array(number_talks(requests), np.uint64)
        left_out = len(timed) - len(found)
        return cls(scale, requests, at, talks, span, copies, wanted / copies, left_out)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.copies * self.kept * len(self.requests) / self.span

    @property
    def output_rate(self) -> float:
        """Tokens of answers a second."""
        tokens = sum(self.scale.count_tokens(one)[1] for one in self.requests)
        return self.rate * tokens / len(self.requests)

    def draw(self, share: float, seconds: float) -> Iterator[ReplicaRequest]:
        """The requests of that share of the conversations, which arrive before so many seconds.
        Their tokens are made as they are needed.
        """
        places, copies, times = [], [], []
        for copy in range(self.copies):
            moved = self.at if not copy else (self.at + self.span * (copy * GOLDEN % 1)) % self.span
            chosen = (moved < seconds) & (hash_talks(self.talks, copy) < self.kept * share)
            (where,) = np.nonzero(chosen)
            places.append(where)
            times.append(moved[where])
            copies.append(np.full(len(where), copy))
        place, time, copy_of = (np.concatenate(parts) for parts in (places, times, copies))
        for i in np.lexsort((place, copy_of, time)):
            number, salt = int(place[i]), str(copy_of[i])
            yield self.scale.make_request(number, float(time[i]), self.requests[number], salt)

    def measure_returns(self) -> float | None:
        """Seconds between two requests of a conversation, the median; None where there are none."""
        last, gaps = dict[int, float](), list[float]()
        for talk, at in zip(self.talks.tolist(), self.at.tolist(), strict=True):
            if talk in last:
                gaps.append(at - last[talk])
            last[talk] = at
        return float(np.median(gaps)) if gaps else None


def number_talks(requests: Sequence[TraceRequest]) -> list[int]:
    """The conversation of each request: its first block that few requests have; a request without
    one is a conversation of its own.
    """
    uses = Counter(block for one in requests for block in set(one.blocks))
    most = max(POPULAR, COMMON * len(requests))
    names = [
        next((block for block in one.blocks if uses[block] <= most), -1 - number)
        for number, one in enumerate(requests)
    ]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def hash_talks(talks: NDArray[np.uint64], copy: int) -> NDArray[np.float64]:
    """A number from 0 to 1 for each conversation of a copy, by SplitMix64."""
    with np.errstate(over="ignore"):
        mixed = (talks + np.uint64(1)) * np.uint64(MIX) + np.uint64(copy * SECOND % (1 << 64))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(SECOND)
        mixed ^= mixed >> np.uint64(31)
    return mixed / 2.0**64
