"""Refuses what could never be finished, before it is queued.

Invariant: what passes can be finished by itself, whatever else there is: by preempting all others
it gets the seats and blocks it needs.  Standard library only.
"""

from flyweight.config import Limits
from flyweight.errors import RequestError
from flyweight.types import Request


def check(request: Request, limits: Limits) -> None:
    """Raises `RequestError`."""
    prompt, wanted = len(request.tokens), request.max_tokens
    least = 1 if request.pooling is None else 0  # tokens of an answer
    if not prompt:
        raise RequestError("prompt has 0 tokens; allowed: 1 or more", "prompt")
    if wanted < least:
        raise RequestError(
            f"max_tokens = {wanted} is out of range; allowed: 1 or more; nearest valid: 1",
            "max_tokens",
        )
    scores = request.params.prompt_logprobs is not None
    assert limits.scored or not scores, "prompt_logprobs, and no rows for them"
    if request.beam is not None:
        _check_width(request.width, limits)
    most, why = _longest(request, limits)
    if prompt > most - least:
        raise RequestError(
            f"prompt of {prompt} tokens leaves no room for an answer within {why}; "
            f"nearest valid: {most - least} tokens",
            "prompt",
        )
    if prompt + wanted > most:
        raise RequestError(
            f"prompt of {prompt} tokens + max_tokens = {wanted} is {prompt + wanted}, "
            f"above {why}; nearest valid: max_tokens = {most - prompt}",
            "max_tokens",
        )


def _check_width(width: int, limits: Limits) -> None:
    most = min(limits.max_num_seqs, limits.blocks // 2)
    if width > most:
        raise RequestError(
            f"beam_width = {width} is above max_num_seqs = {limits.max_num_seqs}, or what "
            f"{limits.blocks} blocks hold, two a beam; nearest valid: {most}",
            "beam_width",
        )


def _longest(request: Request, limits: Limits) -> tuple[int, str]:
    """The most tokens of prompt and answer, and what sets it.  Beams may share nothing once they
    were preempted, and each needs a block to grow into.
    """
    blocks, size, width = limits.blocks, limits.block_size, request.width
    own = blocks if width == 1 else blocks // width - 1
    last = 1 if request.pooling is None else 0  # the last token drawn is never computed
    beams = f", for {width} beams," if width > 1 else ""
    holds = own * size + last, f"what K/V memory of {blocks} blocks of {size} tokens{beams} holds"
    return min((limits.max_model_len, f"max_model_len = {limits.max_model_len}"), holds)
