"""Times of one machine on the clock of another.

Invariant: messages have monotonic seconds of the API server; a replica's engine sees its own.  On
one machine nothing is changed.  As exact as the machines' wall clocks agree.
"""

import time
from collections.abc import Sequence
from math import inf

import msgspec

from flyweight.server import pipe

SAME = 0.01  # seconds of difference up to which two clocks are one


def measure_epoch() -> float:
    """The wall clock at which this machine's monotonic clock was 0."""
    return time.time() - time.monotonic()


class ClockedSubmit(msgspec.Struct, array_like=True):
    """A request, and the `epoch` of the machine whose clock its times are of."""

    epoch: float
    submit: pipe.Submit

    def measure_shift(self) -> float:
        """Seconds by which the sender's monotonic clock is ahead of this machine's."""
        shift = measure_epoch() - self.epoch
        return shift if abs(shift) > SAME else 0.0

    def on_clock(self, shift: float) -> pipe.Submit:
        """The request on a clock that is behind the sender's by so many seconds."""
        submit = self.submit
        if not shift:
            return submit
        start = submit.start_by
        return msgspec.structs.replace(
            submit, arrival=submit.arrival - shift, start_by=start - shift if start < inf else inf
        )


def shift_events(news: Sequence[pipe.StepEvents], shift: float) -> list[pipe.StepEvents]:
    """Events on a clock that is ahead by so many seconds."""
    if shift:
        for one in news:
            if one.timings is not None:
                *times, speedup = one.timings
                arrival, scheduled, first, last = (at + shift for at in times)
                one.timings = (arrival, scheduled, first, last, speedup)
    return list(news)
