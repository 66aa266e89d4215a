"""What the engines of one process share: thread pools, and the memory that each may hold.

Invariant: engines with equal threads and instruction set compute on one pool, one at a time; plans
that were made one after another fit together.  Knows no model.
"""

from dataclasses import dataclass, field
from typing import Any

from flyweight.plan.ledger import MemoryLedger
from flyweight.plan.machine import measure_resident

TOKEN_CACHE = 8 << 20  # bytes of token ids that a server keeps for a model, by default


@dataclass(slots=True)
class ProcessResources:
    """Of one process; `pools` by threads and instruction set."""

    ledger: MemoryLedger
    pools: dict[tuple[int, str | None], Any] = field(default_factory=dict)

    @classmethod
    def make(cls) -> "ProcessResources":
        return cls(MemoryLedger(measure_resident()))


@dataclass(frozen=True, slots=True)
class EngineResources:
    """What one engine, number `owner`, gets of them; it may hold `room` bytes (0: all that is
    left), and if that is not `fixed`, more where its model does not fit.  A server keeps
    `token_cache` bytes of token ids for it.  Other processes have the settings of a `replica`.
    """

    process: ProcessResources
    owner: int
    room: int = 0
    fixed: bool = False
    token_cache: int = TOKEN_CACHE
    replica: bool = False

    @property
    def ledger(self) -> MemoryLedger:
        return self.process.ledger
