"""What the engine counts.  Plain numbers that only grow, and a snapshot of the moment.

Invariant: counting changes nothing.  Standard library only.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class EngineMetrics:
    """Totals since the start.  `computed` counts tokens whose K/V was computed, again after a
    preemption too; `produced` tokens of answers; `cached` prompt tokens not computed because they
    were found; `accepted` of the `proposed` tokens of
    `drafts` drafts.  `chunked` prompts took several
    steps, `shared` steps had several sequences, `prefill_only` ones were of prompts, and
    skipped by sequences that decode, `adapted` requests were for an adapter,
    `constrained` ones had a grammar.
    """

    steps: int = 0
    requests: int = 0
    finished: int = 0
    aborted: int = 0
    computed: int = 0
    produced: int = 0
    cached: int = 0
    preempted: int = 0
    evicted: int = 0
    copied: int = 0
    proposed: int = 0
    accepted: int = 0
    chunked: int = 0
    shared: int = 0
    adapted: int = 0
    constrained: int = 0
    drafts: int = 0
    prefill_only: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment.  `cached_blocks` are free blocks whose contents can be found."""

    running: int
    waiting: int
    blocks: int
    free_blocks: int
    cached_blocks: int
    totals: EngineMetrics
