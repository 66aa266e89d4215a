"""What the engine counts.  Plain numbers that only grow, and a snapshot of the moment.

Invariant: counting changes nothing.  Standard library only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flyweight.engine.step import Plan
from flyweight.types import Event


@dataclass
class EngineMetrics:
    """Totals since the start."""

    steps: int = 0
    requests: int = 0
    finished: int = 0  # choices
    aborted: int = 0  # choices
    computed: int = 0  # tokens whose K/V was computed, recomputation included
    produced: int = 0  # tokens of answers
    cached: int = 0  # prompt tokens found in the prefix cache
    preempted: int = 0  # sequences
    evicted: int = 0  # cached blocks whose space was needed
    copied: int = 0  # shared blocks copied before a write
    proposed: int = 0  # draft tokens
    accepted: int = 0  # draft tokens
    chunked: int = 0  # prompts computed in several steps
    shared: int = 0  # steps of several sequences
    adapted: int = 0  # requests for an adapter
    constrained: int = 0  # requests with a grammar
    drafts: int = 0  # drafts verified
    # microseconds of steps that only decoded, drafting included, and by the measured costs without
    decode_us: int = 0
    undrafted_us: int = 0
    prefill_only: int = 0  # steps that sequences which decode skipped
    external_queries: int = 0  # prompt tokens looked up in the external prefix cache
    external_hits: int = 0  # prompt tokens found there
    peer_hits: int = 0  # tokens of blocks that came from peers
    peer_bytes: int = 0  # of these blocks
    peer_sent: int = 0  # bytes of blocks sent to peers
    peer_given_up: int = 0  # transfers that were not worth their time, or broke off
    peer_refused: int = 0  # connections with another secret, fingerprint or protocol
    awaited: int = 0  # tokens not computed again, as a sequence waited for another's
    drafting_ended: int = 0  # 1 once a failure has ended drafting for all requests

    @property
    def draft_speedup(self) -> float | None:
        """How many times as fast decoding was with drafts, by the measured costs of steps without
        them; None where that was not measured.
        """
        return self.undrafted_us / self.decode_us if self.decode_us else None

    def count(self, plan: Plan, events: Sequence[Event]) -> None:
        """One step, with what it produced."""
        self.steps += 1
        self.preempted += len(plan.preempted)
        self.cached += plan.cached
        self.awaited += plan.awaited
        self.shared += len(plan.chunks) > 1
        self.prefill_only += plan.prefill_only
        for chunk in plan.chunks:
            begins = chunk.start == chunk.seq.cached
            self.chunked += begins and chunk.start + chunk.count < chunk.seq.prompt
            self.computed += chunk.count
            self.copied += chunk.copy is not None
        for event in events:
            self.produced += len(event.tokens)
            self.finished += event.finish is not None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment.  `cached_blocks` are free blocks whose contents can be found."""

    running: int
    waiting: int
    blocks: int
    free_blocks: int
    cached_blocks: int
    totals: EngineMetrics
