"""Fault injection for tests of crashes: `FLYWEIGHT_FAULT`, which has an effect only together with
FLYWEIGHT_TESTING=1.

Invariant: without both, nothing of this module is used.
"""

import os
import re
import signal
import time
from dataclasses import dataclass

from flyweight.engine.step import Plan
from flyweight.errors import ConfigError

FORMS = "raise:step=K,request=R, poison:request=R, die:step=K or slow:ms=N"
KINDS = (
    r"(raise):step=(\d{1,9}),request=(\d{1,9})|(die):step=(\d{1,9})"
    r"|(poison):request=(\d{1,9})|(slow):ms=(\d{1,6})"
)


class StepFault(RuntimeError):
    """An injected error of request `id`."""

    def __init__(self, id: str) -> None:
        super().__init__("an injected fault")
        self.request_id = id


@dataclass(slots=True)
class Fault:
    """At step `step`, or the first after it that computes request number `request` (counted from 0
    in order of arrival), raises an error; without `request`, the process is killed.  A `poison`
    raises in every such step, and does not name the request.  `slow` seconds are added to every
    step.
    """

    step: int
    request: int | None
    poison: bool = False
    spent: bool = False
    slow: float = 0.0

    @classmethod
    def of(cls, text: str) -> "Fault | None":
        """Raises `ConfigError` for what is no fault."""
        if not text:
            return None
        found = re.fullmatch(KINDS, text)
        if found is None:
            raise ConfigError(f"FLYWEIGHT_FAULT = {text[:80]!r} is not a fault; allowed: {FORMS}")
        if found[4]:
            return cls(int(found[5]), None)
        if found[6]:
            return cls(0, int(found[7]), poison=True)
        if found[8]:
            return cls(0, None, slow=int(found[9]) / 1000)
        return cls(int(found[2]), int(found[3]))

    def strike(self, step: int, plan: Plan, arrived: dict[str, int]) -> None:
        """`arrived` numbers the running requests."""
        if self.slow:
            time.sleep(self.slow)
            return
        if self.spent or step < self.step:
            return
        if self.request is None:
            os.kill(os.getpid(), signal.SIGKILL)
        for chunk in plan.chunks:
            if arrived.get(chunk.seq.request.id) != self.request:
                continue
            if self.poison:
                raise RuntimeError("an injected fault")
            self.spent = True
            raise StepFault(chunk.seq.request.id)
