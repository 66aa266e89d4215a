"""The drafter protocol: three methods and their two messages.

Invariant: a `DraftRequest` holds all a drafter may know of a sequence; a `Draft` is only a
proposal, and what was accepted reaches the drafter as the tokens of the next request.  Drafters
keep their own watermarks.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flyweight.ops.operands import KVLayer
from flyweight.sampling.options import SequenceOptions
from flyweight.wire import F32, I32, Batch, Tensor


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How the target draws a request's next tokens: the token at position p depends on the
    distribution there and on (`seed`, `choice`, p).  `options` are all of the request's options;
    those beyond the fields here are in ids of the target's vocabulary.
    """

    seed: int = 0
    choice: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    options: SequenceOptions | None = None

    @classmethod
    def of(cls, options: SequenceOptions) -> "DraftSampling":
        p = options.params
        cuts = p.temperature, p.top_k, p.top_p, p.min_p
        return cls(options.seed, options.choice, *cuts, options)


GREEDY = DraftSampling()


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A sequence about to decode.

    `tokens` are all those settled so far (prompt and accepted, no drafts), only ever appended to
    under one `id`; their number is the position of the first draft token.  `blocks` is its table;
    at most `limit` draft tokens are wanted.  What is learned of one `tenant` (the request's salt)
    or under one `adapter` may not be shown to another.
    """

    id: Hashable
    tokens: Sequence[int]
    blocks: Sequence[int]
    limit: int
    sampling: DraftSampling = GREEDY
    tenant: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens for one request, none to `limit`.

    `parents[i]` is the draft token that token i follows (-1: the last known token); None means a
    plain sequence.  `probs` [k,V] are what each was drawn from, for residual verification; None
    when they were not drawn at random.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    probs: F32 | None = None


class Drafter(Protocol):
    """Called between steps, by the engine's one thread.  `taps` are the layers whose states it
    wants: i for the residual after layer i, -1 for the final hidden state.
    """

    @property
    def taps(self) -> tuple[int, ...]: ...
    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Sees a finished step, and for each of its taps the states [T,H] of the step's tokens,
        arrays of the backend that are good until the next step: position p of a sequence is at the
        token whose slot is blocks[p // B] * B + p % B.
        """
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """One draft for each request, in order."""
        ...

    def forget(self, id: Hashable) -> None:
        """The sequence ended; an unknown id is no error."""
        ...


class TextOnlyDrafter:
    """The part of a `Drafter` that learns nothing of steps: the text is in the requests."""

    taps: tuple[int, ...] = ()

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Nothing to learn; not called where it is this one."""


@runtime_checkable
class StoringDrafter(Drafter, Protocol):
    """A drafter with K/V of its own in the target's blocks.  A request's limit is within the slots
    of its blocks, and copies of slots are made in its `layers` too.
    """

    @property
    def layers(self) -> Sequence[KVLayer]: ...


@runtime_checkable
class StatefulDrafter(Drafter, Protocol):
    """A drafter that keeps states of the target's slots, apart from K/V."""

    def copy_slots(self, source: I32, target: I32) -> None:
        """Called before a step whose first act is to copy K/V of these slots."""
        ...


@runtime_checkable
class PausableDrafter(Drafter, Protocol):
    """A drafter of states that can do without some steps.  Where it `needs_all_steps` of a
    sequence, it drafts for those that begin later only.
    """

    @property
    def needs_all_steps(self) -> bool: ...
    def pause(self) -> None:
        """It will not see the next steps: what it knows of earlier ones no longer holds."""
        ...


@runtime_checkable
class ReadingDrafter(Drafter, Protocol):
    """A drafter that reads the texts of requests by itself, not with the target."""

    def read(self, requests: Sequence[DraftRequest]) -> None:
        """Called after a step with the sequences whose prompts are half computed: `tokens` are
        those that are, no drafts are wanted.
        """
        ...


@runtime_checkable
class LateDrafter(Drafter, Protocol):
    """A drafter that puts off what it computes of texts until a draft is wanted."""

    def catch_up(self, requests: Sequence[DraftRequest]) -> None:
        """Called before `propose`, with the same requests: computes what has become too much for
        it, such as a prompt, and a part of it where that is more than a step's work.
        """
        ...
