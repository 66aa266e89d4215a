"""How a feature takes part in the steps of the requests that use it: one `Hook` each.

Invariant: a hook sees the chunks of its own requests only, and never changes what the scheduler
plans.  A new feature is one file with a hook, and one entry in the engine's list of hooks.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf

from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Chunk, Produced
from flyweight.errors import FlyweightError
from flyweight.types import Event, Request
from flyweight.wire import F32, U32, Sampled


@dataclass(slots=True)
class LogitsEdit:
    """Logits row `row` is to go through a sequence's own functions; `error` says why it did not."""

    row: int
    seq: Sequence
    error: FlyweightError | None = None


@dataclass(frozen=True, slots=True)
class LogitsRead:
    """Logits of `rows` are given to `take` as the model computed them, before any edit."""

    rows: range
    take: Callable[[F32], None]


@dataclass(slots=True)
class RowMarks:
    """What hooks say of a step's rows: `masks` of allowed tokens, `edits` of logits; `reads` of
    logits by hooks that change nothing.  By the
    first drawn row of a chunk: `errors` that end the sequence, and draws that do not count, because
    the row is to be computed `again`.  `seconds` are the step's `mask_seconds`.
    """

    seconds: float = inf
    masks: dict[int, U32] = field(default_factory=dict)
    edits: list[LogitsEdit] = field(default_factory=list)
    reads: list[LogitsRead] = field(default_factory=list)
    errors: dict[int, FlyweightError] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)


class Hook:
    """One feature.  A method that a feature does not need does nothing."""

    def wants(self, request: Request) -> bool:
        """Whether a request uses the feature."""
        raise NotImplementedError

    def mark(self, chunks: Seq[Chunk], marks: RowMarks) -> None:
        """Marks rows before the model runs."""

    def settle(self, chunk: Chunk, out: Produced, sampled: Sampled) -> Produced:
        """What becomes of a chunk's result before it is committed."""
        return out

    def finish(self, found: Seq[tuple[Chunk, Produced]], sampled: Sampled) -> list[Event]:
        """Events of its own, after the commit."""
        return []

    def cut(self, seq: Sequence, draft: list[int]) -> list[int]:
        """The part of a draft that may follow."""
        return draft

    def abort(self, id: str) -> None:
        """The request is ended from outside, by what comes next."""

    def forget(self, id: str, index: int, *, ended: bool = False) -> None:
        """A sequence ended or starts over; where the request has no other, it has `ended`."""

    def recover(self) -> None:
        """A step was interrupted: the scheduler is about to start every sequence over."""
