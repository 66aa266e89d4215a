"""Refuses what could never be finished, before it is queued; counts the `max_num_seqs` seats.

Invariant: what passes can be finished by itself, whatever else there is: by preempting all others
it gets the seats and blocks it needs.  A search has the seats of its whole width or none, so two
never wait for each other's.  Standard library only; changes nothing.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from flyweight.config import Limits
from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.errors import RequestError
from flyweight.types import Request


def check(request: Request, limits: Limits) -> None:
    """Raises `RequestError`."""
    prompt, wanted = len(request.tokens), request.max_tokens
    least = 1 if request.pooling is None else 0  # tokens of an answer
    if not prompt:
        raise RequestError("has 0 tokens", "prompt", allowed="1 or more")
    if wanted < least:
        raise RequestError(
            "is out of range",
            "max_tokens",
            value=wanted,
            allowed="1 or more",
            hint="nearest valid: 1",
        )
    scores = request.params.prompt_logprobs is not None
    assert limits.scored or not scores, "prompt_logprobs, and no rows for them"
    if request.beam is not None:
        _check_width(request.width, limits)
    most, why = _find_longest(request, limits)
    if prompt > most - least:
        raise RequestError(
            f"has {prompt} tokens, which leaves no room for an answer within {why}",
            "prompt",
            code="context_length_exceeded",
            hint=f"nearest valid: {most - least} tokens",
        )
    if prompt + wanted > most:
        raise RequestError(
            f"is too large: with a prompt of {prompt} tokens it is {prompt + wanted}, above {why}",
            "max_tokens",
            code="context_length_exceeded",
            value=wanted,
            hint=f"nearest valid: {most - prompt}",
        )


def count_free_seats(running: Seq[Sequence], most: int) -> int:
    """Seats of `most` that are not taken."""
    single = sum(1 for s in running if s.request.width == 1)
    groups = {s.request.id: s.request.width for s in running if s.request.width > 1}
    return most - single - sum(groups.values())


def count_needed_seats(seq: Sequence, group: Seq[Sequence]) -> int:
    """Seats needed to admit one of a request's sequences: a search takes those of its whole width
    with its first.
    """
    width = seq.request.width
    if width == 1:
        return 1
    return 0 if any(s.state is SequenceState.RUNNING for s in group) else width


def count_startable(running: Seq[Sequence], seated: Iterable[Sequence]) -> int:
    """Tokens of waiting sequences for which there are seats, as far as they delay no decode of
    better priority.
    """
    best = min((s.request.priority for s in running if s.decoding), default=None)
    able = (s for s in seated if best is None or s.request.priority <= best)
    return sum(len(s.tokens) for s in able)


def count_started(running: Seq[Sequence]) -> int:
    """Tokens that are left of prompts which have a seat."""
    return sum(len(s.tokens) - s.computed for s in running if not s.decoding)


def _check_width(width: int, limits: Limits) -> None:
    most = min(limits.max_num_seqs, limits.blocks // 2)
    if width > most:
        raise RequestError(
            f"is above max_num_seqs = {limits.max_num_seqs}, or above what "
            f"{limits.blocks} blocks hold at two per beam",
            "beam_width",
            value=width,
            hint=f"nearest valid: {most}",
        )


def _find_longest(request: Request, limits: Limits) -> tuple[int, str]:
    """The most tokens of prompt and answer, and what sets it.  Beams may share nothing once they
    were preempted, and each needs a block to grow into.
    """
    blocks, size, width = limits.blocks, limits.block_size, request.width
    own = blocks if width == 1 else blocks // width - 1
    last = 1 if request.pooling is None else 0  # the last token drawn is never computed
    beams = f", for {width} beams," if width > 1 else ""
    holds = own * size + last, f"what K/V memory of {blocks} blocks of {size} tokens{beams} holds"
    return min((limits.max_model_len, f"max_model_len = {limits.max_model_len}"), holds)
