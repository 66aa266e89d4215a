"""Which prompts a prefill server computes for a decode server, and how long it may take.

Invariant: a prompt is handed over only if it has `threshold` tokens that are not expected in the
decode server's cache, and the prefill server has not just failed.  Every hand-off has a limit in
seconds, so a server that hangs delays a request by no more than that.
One thread calls it.  Standard library only; knows no transport.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from flyweight.config import whole
from flyweight.errors import ConfigError
from flyweight.routing.prefix_index import PrefixIndex

SLACK = 3.0  # times the expected seconds
LEAST = 1.0  # seconds beyond that
NEWEST = 0.5  # weight of the newest time
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds until a server that failed is tried again


@dataclass(frozen=True, slots=True)
class HandoffOptions:
    """`threshold`: tokens that must be left to compute.  `blocks`: of the decode server's cache.
    `rate`: tokens a second that the prefill server computes, until that was measured.
    """

    threshold: int = 512
    blocks: int = 4096
    block_size: int = 32
    rate: float = 100.0

    def __post_init__(self) -> None:
        whole("threshold", self.threshold, 1)
        whole("blocks", self.blocks, 1)
        whole("block_size", self.block_size, 1)
        if not (isfinite(self.rate) and self.rate > 0):
            raise ConfigError("is not above 0", "rate", value=self.rate)


@dataclass(frozen=True, slots=True, eq=False)
class Handoff:
    """A prompt of which `tokens` are to be computed, after `ahead` tokens of others; `began` on the
    clock, to be given up after `limit` seconds.
    """

    tokens: int
    ahead: int
    began: float
    limit: float


class PrefillHandoff:
    """One prefill server and one decode server of the same model."""

    def __init__(
        self, options: HandoffOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options, self.clock = options, clock
        self.index = PrefixIndex(options.blocks)
        self.seconds = 1.0 / options.rate  # of a token
        self.outstanding = 0  # tokens
        self._measured = False
        self._wait, self._failed_at, self._retry_at = FIRST_WAIT, float("-inf"), 0.0

    def begin(self, chain: Sequence[bytes], tokens: int) -> Handoff | None:
        """The hand-off of a prompt of so many tokens, whose full blocks have these keys.  None: the
        decode server computes it.  Either way that server has the blocks afterwards.
        """
        left = tokens - self.index.count_prefix(chain) * self.options.block_size
        self.index.use(chain)
        now = self.clock()
        if left < self.options.threshold or now < self._retry_at:
            return None
        limit = LEAST + SLACK * self.seconds * (self.outstanding + left)
        handoff = Handoff(left, self.outstanding, now, limit)
        self.outstanding += left
        return handoff

    def finish(self, handoff: Handoff, computed: int = 0) -> None:
        """The prefill server has answered, for which it computed so many tokens of the prompt."""
        self.outstanding -= handoff.tokens
        self._wait = FIRST_WAIT
        if 2 * computed < self.options.threshold:
            return  # nearly all was cached: that says nothing of its speed
        newest = (self.clock() - handoff.began) / (handoff.ahead + computed)
        share = NEWEST if self._measured else 1.0
        self.seconds += share * (newest - self.seconds)
        self._measured = True

    def cancel(self, handoff: Handoff) -> None:
        """The client left before the prefill server answered."""
        self.outstanding -= handoff.tokens

    def fail(self, handoff: Handoff) -> None:
        """The prefill server failed, or was given up: it is left alone for 1 second, then 2, up to
        60.  Hand-offs that were under way together count once.
        """
        self.outstanding -= handoff.tokens
        if handoff.began < self._failed_at:
            return
        self._failed_at = self.clock()
        self._retry_at = self._failed_at + self._wait
        self._wait = min(LONGEST_WAIT, 2 * self._wait)
