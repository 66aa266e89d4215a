"""What a step's result means for a sequence: which tokens count, whether they end it, and the event
that says so.

Invariant: changes no sequence.  Standard library only.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace

from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Produced
from flyweight.types import Event, Finish


def trim(seq: Sequence, out: Produced) -> tuple[Produced, Finish | None]:
    """Cuts what was accepted after a stop id, after the last token allowed, or where the text
    repeats itself; returns how that ends it.
    """
    request, generated = seq.request, seq.generated
    room, least = request.max_tokens - generated, request.params.min_tokens - generated
    kept = min(len(out.tokens), room)
    finish = Finish.LENGTH if kept == room else None
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


def aborted(ended: Seq[Sequence]) -> list[Event]:
    """One event for each sequence, or for each beam of a search, however many are live."""
    events = [event_of(seq, Produced(()), Finish.ABORT) for seq in ended]
    width = ended[0].request.width if ended else 1
    return events if width == 1 else [replace(events[0], index=i) for i in range(width)]


def event_of(seq: Sequence, out: Produced, finish: Finish | None) -> Event:
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
        timings=seq.timings() if timed else None,
        reuse=seq.reuse if timed else None,
    )
