"""What is known of each replica, and of each request that runs on one.

Invariant: records alone; `ReplicaSet` changes them.
"""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from flyweight.server import pipe


class Outcome(Enum):
    """How a try to compute a request ended."""

    ENDED = "it was answered"
    GONE = "the replica takes no new requests"
    LOST = "the replica was lost"


@dataclass(slots=True, eq=False)
class Member:
    """A replica, whose cache has so many `blocks`; `slot` is its number for people, the lowest that
    is free.  `open` replicas get new requests, others are paused; `readers` read the streams of
    those that run.  `refusals` are those in a row, and `again` is when the next request may be sent
    there.  Its requests `progressed` last at this time, while there are `readers`.
    """

    name: str
    slot: int
    blocks: int
    open: bool = True
    refusals: int = 0
    again: float = 0.0
    progressed: float = 0.0
    readers: set["asyncio.Task[Outcome]"] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request under way.  `begun`: something of its answer was passed on; `started`: it was said
    that it is computed.
    """

    submit: pipe.Submit
    chain: list[bytes]
    begun: bool = False
    started: bool = False
    name: str = ""
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class RoutingCounts:
    """Requests that began again on another replica, and that ended as theirs was lost; replicas
    that were lost.
    """

    retried: int = 0
    failed: int = 0
    lost: int = 0
