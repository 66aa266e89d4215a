"""Lays the sampling options of a step's rows out as columns: `Row` in, `wire.SampleBatch` out.

Invariant: a row's entries depend on that row only.  History, bias and bans cost nothing for the
rows that use none of them.  The order in which options act is `ops.sample`'s business, not ours.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.types import SamplingParams
from flyweight.wire import F32, I32, SampleBatch

WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """One logits row: how its token is to be chosen.

    `position` is the index in the sequence of the token to be drawn, `prompt` how many of `tokens`
    are the caller's, `generated` how many tokens precede this one after them.  `tokens` are those
    before `position` (drafts among them count); read only when the options hold a penalty.
    `stop_ids` may not be drawn while `generated` is below the options' min_tokens.
    """

    params: SamplingParams
    seed: int
    choice: int
    position: int
    prompt: int
    tokens: Sequence[int]
    stop_ids: Collection[int] = ()
    generated: int = 0


def columns(rows: Sequence[Row]) -> SampleBatch:
    """The rows' options, in order, as flat arrays (a few microseconds a row)."""
    reals = np.array([_reals(row.params) for row in rows], np.float32).reshape(-1, 6)
    wholes = np.array([_wholes(row) for row in rows], np.int32).reshape(-1, 5)
    top_k, logprobs, choice, position, prompt = np.ascontiguousarray(wholes.T)
    temperature, top_p, min_p = np.ascontiguousarray(reals[:, :3].T)
    history, history_starts = _ragged(row.tokens if penalised(row.params) else () for row in rows)
    biases = [row.params.logit_bias for row in rows]
    bias_ids, bias_starts = _ragged(biases)
    banned_ids, banned_starts = _ragged(_banned(row) for row in rows)
    return SampleBatch(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=np.array([row.seed & WORD for row in rows], np.uint64),
        choice=choice,
        position=position,
        penalties=np.ascontiguousarray(reals[:, 3:]),
        prompt=prompt,
        history=history,
        history_starts=history_starts,
        bias_ids=bias_ids,
        bias_values=_flat_values(biases),
        bias_starts=bias_starts,
        banned_ids=banned_ids,
        banned_starts=banned_starts,
        logprobs=logprobs,
    )


def _reals(p: SamplingParams) -> tuple[float, ...]:
    penalties = p.repetition_penalty, p.presence_penalty, p.frequency_penalty
    return p.temperature, p.top_p, p.min_p, *penalties


def _wholes(row: Row) -> tuple[int, ...]:
    p = row.params
    top_k = min(p.top_k, 2**31 - 1)  # above any vocabulary, so the same as all
    logprobs = -1 if p.logprobs is None else p.logprobs
    prompt = row.prompt if penalised(p) else 0
    return top_k, logprobs, row.choice, row.position, prompt


def penalised(p: SamplingParams) -> bool:
    """Whether the options read a row's tokens."""
    return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0


def _banned(row: Row) -> Collection[int]:
    return row.stop_ids if row.generated < row.params.min_tokens else ()


def _ragged(lists: Iterable[Collection[int]]) -> tuple[I32, I32]:
    """Collections of ids, end to end, and where each starts: [sum], [R+1]."""
    flat: list[int] = []
    starts = [0]
    for ids in lists:
        flat.extend(ids)
        starts.append(len(flat))
    return np.array(flat, np.int32), np.array(starts, np.int32)


def _flat_values(biases: Iterable[Mapping[int, float]]) -> F32:
    return np.array([value for bias in biases for value in bias.values()], np.float32)
