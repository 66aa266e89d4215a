"""Beam search: of all continuations of the live beams, which go on and which have ended.

Invariant: `advance` is a pure function, and chooses what transformers' `num_beams` would: the best
`width` continuations that do not end go on, those among the best `width` of all that end become
hypotheses, scored by total log-probability / length ** length_penalty.  Knows no model, no K/V and
no engine.  Standard library only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flyweight.types import Request


@dataclass(frozen=True, slots=True)
class Rules:
    """`most` tokens at the longest; `early` is True (stop with `width` hypotheses), False (stop
    where the best live beam, as it is, would not be one of them) or "never" (where it could not
    become one).
    """

    width: int
    most: int
    stop_ids: frozenset[int] = frozenset()
    penalty: float = 1.0
    early: bool | str = False

    @property
    def candidates(self) -> int:
        """How many of a beam's best continuations can matter: `width` that go on, and every end."""
        return self.width + len(self.stop_ids)


def make_rules(request: Request) -> Rules:
    """A request's own."""
    beam = request.beam
    assert beam is not None, "not a search"
    return Rules(
        width=beam.beam_width,
        most=request.max_tokens,
        stop_ids=request.stop_ids,
        penalty=beam.length_penalty,
        early=beam.early_stopping,
    )


class Beam(NamedTuple):
    """Tokens after the prompt, and their log-probability.  `parent` is the place, one step
    earlier, of the beam it continues.
    """

    tokens: tuple[int, ...]
    total: float
    parent: int


class Hypothesis(NamedTuple):
    """An answer; the last of its tokens may be a stop id."""

    tokens: tuple[int, ...]
    total: float
    score: float


@dataclass(frozen=True, slots=True)
class BeamState:
    """A search after some steps, best first.  `hopeful` until no live beam can do better."""

    beams: tuple[Beam, ...] = (Beam((), 0.0, 0),)
    ended: tuple[Hypothesis, ...] = ()
    hopeful: bool = True
    done: bool = False


Row = tuple[Sequence[int], Sequence[float]]


def advance(state: BeamState, rows: Sequence[Row], rules: Rules) -> BeamState:
    """One step.  `rows` are each beam's best ids and their log-probabilities, best first, at least
    `rules.candidates` of them or the whole vocabulary.
    """
    ranked = _rank(state.beams, rows)
    length = len(state.beams[0].tokens) + 1
    last = length == rules.most
    best = ranked[: rules.width]
    ends = best if last else [beam for beam in best if beam.tokens[-1] in rules.stop_ids]
    state = replace(state, ended=_merge(state, ends, rules))
    full = len(state.ended) == rules.width
    if last:
        return replace(state, done=True)
    live = tuple(beam for beam in ranked if beam.tokens[-1] not in rules.stop_ids)[: rules.width]
    hopeful = state.hopeful and not (full and _is_outdone(live[0], state.ended, rules))
    done = not hopeful or (full and rules.early is True)
    return BeamState(live, state.ended, hopeful, done)


def _rank(beams: Sequence[Beam], rows: Sequence[Row]) -> list[Beam]:
    """All continuations, the likeliest first; equal ones by beam, then by id."""
    found = [
        (-(beam.total + logprob), at, id)
        for at, (beam, row) in enumerate(zip(beams, rows, strict=True))
        for id, logprob in zip(*row, strict=True)
    ]
    return [Beam((*beams[at].tokens, id), -less, at) for less, at, id in sorted(found)]


def _merge(state: BeamState, ends: Sequence[Beam], rules: Rules) -> tuple[Hypothesis, ...]:
    """The best `width` hypotheses, of equals the older; none is added to a search that is over."""
    full = len(state.ended) == rules.width
    if not state.hopeful or (full and rules.early is True):
        return state.ended
    new = [
        Hypothesis(b.tokens, b.total, b.total / float(len(b.tokens)) ** rules.penalty) for b in ends
    ]
    best = sorted((*state.ended, *new), key=lambda hypothesis: -hypothesis.score)
    return tuple(best[: rules.width])


def _is_outdone(beam: Beam, ended: Sequence[Hypothesis], rules: Rules) -> bool:
    """Whether the best live beam's score, now or at the longest, is no better than the worst
    hypothesis.
    """
    longest = rules.early == "never" and rules.penalty > 0
    length = rules.most if longest else len(beam.tokens)
    return bool(beam.total / length**rules.penalty <= ended[-1].score)
