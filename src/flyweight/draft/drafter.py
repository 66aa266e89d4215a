"""What a drafter is: three methods and the two messages that cross them.

Invariant: a `DraftRequest` holds all a drafter may know of a sequence; a `Draft` is only a guess,
and its verdict reaches the drafter as the tokens of the next ask.  Drafters keep their own
watermarks.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flyweight.ops.base import Array
from flyweight.wire import F32, Batch


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A sequence about to decode.

    `tokens` are all those settled so far (prompt and accepted, no drafts), only ever appended to
    under one `id`; `blocks` its table; at most `limit` guesses are wanted.
    """

    id: Hashable
    tokens: Sequence[int]
    blocks: Sequence[int]
    limit: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses for one ask, none to `limit`.

    `parents[i]` is the guess that guess i follows (-1 the last settled token); None means a plain
    row of them.  `probs` [k,V] are what each was drawn from, for residual verification; None when
    the guesses were not drawn at random.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    probs: F32 | None = None


class Drafter(Protocol):
    """Called between steps, by the engine's one thread."""

    def observe(self, batch: Batch, taps: Mapping[int, Array]) -> None:
        """Sees a finished step, and the hidden states [T,H] of the layers it asked to tap."""
        ...

    def propose(self, asks: Sequence[DraftRequest]) -> Sequence[Draft]:
        """One draft for each ask, in order."""
        ...

    def forget(self, id: Hashable) -> None:
        """The sequence ended; an unknown id is no error."""
        ...
