"""One step as data: what it may cost, what it computes, and what came of it: which tokens count,
whether they end a sequence, and the event that says so.

Invariant: a plan's chunks name each sequence at most once; no sequence is changed here. Standard
library only; knows no arrays and no text.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from math import inf
from sys import maxsize
from typing import NamedTuple

from flyweight.draft.tree import ROOT
from flyweight.engine.sequence import Sequence
from flyweight.errors import FlyweightError
from flyweight.kv.blocks import Copy
from flyweight.types import Event, Finish, TokenLogprobs


class Load(NamedTuple):
    """What a step's budget depends on: sequences that are `running`, and whether some of them are
    `decoding`; tokens of waiting prompts that are `startable`, and tokens left of prompts that have
    `started`.
    """

    running: int
    decoding: bool
    startable: int = 0
    started: int = 0


class StepBudget(NamedTuple):
    """What one step may cost: `tokens` to compute besides draft tokens, or one for each sequence
    that is ready if that is more; `mask_seconds` of processor time for cheap grammar masks, and the
    same for expensive ones.  Where `prefill_tokens` is not 0, the step may be prefill-only: up to
    that many tokens of prompts, while sequences that decode skip it, but never two steps in
    succession.
    """

    tokens: int
    prefill_tokens: int = 0
    mask_seconds: float = inf


UNLIMITED = StepBudget(maxsize)  # as many tokens as a step may have


NO_ROWS = range(0)


@dataclass(slots=True, eq=False)
class Chunk:
    """Compute `count` known tokens of `seq` from `start` on; `copy` is made before.  The rows of
    the last of these tokens are wanted, each range of one kind: `hidden` states for pooling;
    log-probabilities of tokens that are given (`scored`); tokens to draw (`drawn`).  Ranges number
    the step's rows: hidden ones by themselves, scored and drawn ones together.  (Not frozen: that
    would cost 128 sequences 0.1 ms a step.)
    """

    seq: Sequence
    start: int
    count: int
    copy: Copy | None
    hidden: range
    scored: range
    drawn: range

    @property
    def rows(self) -> int:
        """How many rows are wanted."""
        return len(self.hidden) + len(self.scored) + len(self.drawn)


@dataclass(slots=True)
class Plan:
    """The scheduler's answer for one step.  `logits` and `hidden` count its rows of both kinds,
    `scored` those for log-probabilities of prompts.  `cached` prompt tokens of requests begun in it
    were found in the prefix cache; `awaited` are those found there by sequences that waited for
    another to compute them.  `prefill_only`: sequences that decode skip this step.
    """

    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    cached: int = 0
    awaited: int = 0
    hidden: int = 0
    logits: int = 0
    scored: int = 0
    prefill_only: bool = False

    def add(
        self, seq: Sequence, start: int, count: int, copy: Copy | None, rows: int, scored: int = 0
    ) -> None:
        """A chunk whose last `rows` tokens have rows that are wanted, the first `scored` of them
        for log-probabilities.
        """
        hidden = given = drawn = NO_ROWS
        if rows and seq.request.pooling is not None:
            hidden = range(self.hidden, self.hidden + rows)
            self.hidden += rows
        elif rows:
            first, stop = self.logits + scored, self.logits + rows
            given, drawn = range(self.logits, first), range(first, stop)
            self.logits, self.scored = stop, self.scored + scored
        self.chunks.append(Chunk(seq, start, count, copy, hidden, given, drawn))


class ComputeError(Exception):
    """The computation of a plan raised; its cause says what.  No sequence has changed."""


class Produced(NamedTuple):
    """What a chunk's rows gave: the accepted tokens, none where none was to be drawn or something
    else decides what follows (the sequence is then held); mirostat's state after them, where it was
    used; the scored rows' log-probabilities; what ends it, if something of the caller's
    went wrong; whether its grammar lets nothing follow; whether what was drawn does not count, and
    the last row is to be computed again; the last draft token that was `accepted`.
    """

    tokens: Seq[int]
    logprobs: Seq[TokenLogprobs] = ()
    mu: float | None = None
    scores: Seq[TokenLogprobs] = ()
    error: FlyweightError | None = None
    over: bool = False
    again: bool = False
    accepted: int = ROOT


def trim(seq: Sequence, out: Produced) -> tuple[Produced, Finish | None]:
    """Cuts what was accepted after a stop id, after the last token allowed, or where the text
    repeats itself; returns how that ends it.
    """
    request, generated = seq.request, seq.generated
    left, least = request.max_tokens - generated, request.params.min_tokens - generated
    kept = min(len(out.tokens), left)
    finish = Finish.LENGTH if kept == left else None
    if request.stop_ids:
        for i in range(max(0, least), kept):
            if out.tokens[i] in request.stop_ids:
                kept, finish = i + 1, Finish.STOP
                break
    repetition = request.params.repetition_detection
    if repetition is not None:
        new = out.tokens[: kept - (finish is not None)]  # any other end comes first
        ended = repetition.find_end(seq.tokens, seq.prompt, new, least)
        if ended is not None:
            kept, finish = ended, Finish.REPETITION
    if kept < len(out.tokens):
        out = out._replace(tokens=out.tokens[:kept], logprobs=out.logprobs[:kept])
    elif out.over:
        finish = Finish.STOP
    return out, finish


def make_abort_events(ended: Seq[Sequence]) -> list[Event]:
    """One event for each sequence, or for each beam of a search, however many are live."""
    events = [make_event(seq, Produced(()), Finish.ABORT) for seq in ended]
    width = ended[0].request.width if ended else 1
    return events if width == 1 else [replace(events[0], index=i) for i in range(width)]


def make_event(seq: Sequence, out: Produced, finish: Finish | None) -> Event:
    """Timings travel with the first token and with the end, a vector's with it."""
    generated, pooled = seq.generated, seq.request.pooling is not None
    timed = (finish or generated == len(out.tokens)) if generated else (finish and pooled)
    stopped = finish is Finish.STOP and out.tokens and not out.over
    return Event(
        id=seq.request.id,
        index=seq.index,
        tokens=tuple(out.tokens),
        logprobs=tuple(out.logprobs),
        finish=finish,
        stop_token=out.tokens[-1] if stopped else None,
        cached=seq.cached,
        prompt_logprobs=tuple(out.scores),
        error=out.error,
        timings=seq.read_timings() if timed else None,
        reuse=seq.reuse if timed else None,
    )
