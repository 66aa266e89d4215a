"""A replica as the router sees it, and where a request goes.

Standard library only; knows no process and no address.
"""

from dataclasses import dataclass
from typing import NamedTuple

REQUEST_TOKENS = 64  # what an unfinished request counts besides its prompt


@dataclass(slots=True, eq=False)
class Replica:
    """`blocks` of K/V are its prefix cache; `number` is its place in the order of being added.
    `requests` are unfinished, and `tokens` of their prompts were not expected in its cache.
    `chosen` is the number of the newest request that was sent to it.  One that is `paused` is not
    chosen.
    """

    name: str
    blocks: int
    number: int
    requests: int = 0
    tokens: int = 0
    chosen: int = -1
    paused: bool = False

    @property
    def work(self) -> int:
        """Outstanding work, in prompt tokens."""
        return self.tokens + REQUEST_TOKENS * self.requests


class Route(NamedTuple):
    """The replica of a request, and how many first blocks of its prompt should be cached there."""

    replica: Replica
    cached: int
