"""Log-probabilities as OpenAI's two dialects write them.

Invariant: one entry a token, the chosen one first; a token's bytes are exact where its text cannot
be.
"""

from collections.abc import Sequence
from typing import Any

from flyweight.results import Logprob

LOWEST = -9999.0  # JSON has no minus infinity


def chat_scores(found: Sequence[dict[int, Logprob]], most: int) -> dict[str, Any]:
    """Of /v1/chat/completions, `most` alternatives each."""
    return {"content": [_position(list(entry.values()), most) for entry in found]}


def text_scores(
    found: Sequence[dict[int, Logprob] | None], most: int, start: int = 0
) -> dict[str, Any]:
    """Of /v1/completions; `start` is where the first token begins in the text."""
    tokens: list[str] = []
    values: list[float | None] = []
    best: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for entry in found:
        listed = list(entry.values()) if entry else []
        if not listed:  # the prompt's first token, which nothing foretells
            tokens.append("")
            values.append(None)
            best.append(None)
        else:
            tokens.append(listed[0].decoded_token)
            values.append(_finite(listed[0].logprob))
            ranked = [one for one in listed if one.rank is not None and one.rank <= most]
            best.append({one.decoded_token: _finite(one.logprob) for one in ranked})
        offsets.append(start)
        start += len(tokens[-1])
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": best,
        "text_offset": offsets,
    }


def token_scores(found: Sequence[dict[int, Logprob]]) -> list[dict[str, Any]]:
    """Of llama-server's /completion, with each token's id."""
    listed = []
    for entry in found:
        every = [{"id": token, **_one(one)} for token, one in entry.items()]
        ranked = sorted(zip(every, entry.values(), strict=True), key=lambda pair: _rank(pair[1]))
        listed.append({**every[0], "top_logprobs": [one for one, _ in ranked]})
    return listed


def _position(listed: Sequence[Logprob], most: int) -> dict[str, Any]:
    ranked = sorted((one for one in listed if one.rank and one.rank <= most), key=_rank)
    return {**_one(listed[0]), "top_logprobs": [_one(one) for one in ranked]}


def _rank(one: Logprob) -> int:
    return one.rank or 0


def _one(one: Logprob) -> dict[str, Any]:
    return {
        "token": one.decoded_token,
        "logprob": _finite(one.logprob),
        "bytes": list(one.decoded_token.encode("utf-8", "replace")),
    }


def _finite(value: float) -> float:
    return max(value, LOWEST)
