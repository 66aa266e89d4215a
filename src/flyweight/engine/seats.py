"""Who may run at the same time: the `max_num_seqs` seats, and what could take one now.

Invariant: a search has the seats of its whole width or none, so two never wait for each other's.
Standard library only; changes nothing.
"""

from collections.abc import Sequence as Seq

from flyweight.engine.sequence import Sequence, State


def free(running: Seq[Sequence], most: int) -> int:
    """Seats of `most` that nobody has."""
    single = sum(1 for s in running if s.request.width == 1)
    groups = {s.request.id: s.request.width for s in running if s.request.width > 1}
    return most - single - sum(groups.values())


def needed(seq: Sequence, group: Seq[Sequence]) -> int:
    """How many it takes to admit one of a request's sequences: a search takes those of its whole
    width with its first.
    """
    width = seq.request.width
    if width == 1:
        return 1
    return 0 if any(s.state is State.RUNNING for s in group) else width


def startable(running: Seq[Sequence], waiting: Seq[Sequence], seats: int) -> int:
    """Tokens of those who wait, in their order, and could take one of so many seats without being
    put before anybody who decodes and has better priority.
    """
    best = min((s.request.priority for s in running if s.decoding), default=None)
    able = (s for s in waiting[: max(0, seats)] if best is None or s.request.priority <= best)
    return sum(len(s.tokens) for s in able)


def begun(running: Seq[Sequence]) -> int:
    """Tokens that are left of prompts which have a seat."""
    return sum(len(s.tokens) - s.computed for s in running if not s.decoding)
