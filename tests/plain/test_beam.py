"""Beam search's choices, on distributions written down by hand, against exhaustive search."""

from itertools import product

import pytest

from flyweight.sampling.beam import BeamState, Rules, advance


def log_odds(tokens: tuple[int, ...], vocab: int = 4) -> list[float]:
    """A made-up distribution: differs with the context, no two alike."""
    return [
        -((37 * (i + 1) * (len(tokens) + 3) + 11 * sum(tokens)) % 101) / 17 for i in range(vocab)
    ]


def run(rules: Rules, vocab: int = 4) -> tuple[BeamState, int]:
    state, steps = BeamState(), 0
    while not state.done:
        rows = []
        for beam in state.beams:
            odds = log_odds(beam.tokens, vocab)
            ids = sorted(range(vocab), key=lambda i: -odds[i])[: rules.candidates]
            rows.append((ids, [odds[i] for i in ids]))
        state, steps = advance(state, rows, rules), steps + 1
    return state, steps


def score(tokens: tuple[int, ...], penalty: float) -> float:
    total = sum(log_odds(tokens[:i])[t] for i, t in enumerate(tokens))
    return total / len(tokens) ** penalty


@pytest.mark.parametrize("penalty", (0.0, 0.7, 1.0, 2.0))
def test_a_wide_beam_is_exhaustive(penalty: float) -> None:
    """With as many beams as there are texts nothing is ever cut off."""
    stop, most = 3, 3
    rules = Rules(64, most, frozenset({stop}), penalty, "never")
    whole = [t for n in range(1, most + 1) for t in product(range(4), repeat=n)]
    valid = [t for t in whole if stop not in t[:-1] and (len(t) == most or t[-1] == stop)]
    state, _ = run(rules)
    best = sorted(valid, key=lambda t: -score(t, penalty))
    assert {h.tokens for h in state.ended} == set(best)
    assert [h.score for h in state.ended] == pytest.approx([score(t, penalty) for t in best])


def test_a_beam_of_one_is_greedy() -> None:
    state, steps = run(Rules(1, 6))
    tokens: tuple[int, ...] = ()
    for _ in range(6):
        odds = log_odds(tokens)
        tokens += (max(range(4), key=lambda i: odds[i]),)
    assert steps == 6 and [h.tokens for h in state.ended] == [tokens]


def rows(*odds: dict[int, float]) -> list[tuple[list[int], list[float]]]:
    return [(list(o), list(o.values())) for o in odds]


def test_only_ends_among_the_best_are_hypotheses() -> None:
    rules = Rules(2, 9, frozenset({0}))
    state = advance(BeamState(), rows({1: -1.0, 2: -2.0, 0: -3.0}), rules)
    assert [b.tokens for b in state.beams] == [(1,), (2,)] and state.ended == ()
    state = advance(state, rows({0: -0.5, 1: -1.0, 2: -4.0}, {1: -0.1, 0: -6.0, 2: -7.0}), rules)
    assert [h.tokens for h in state.ended] == [(1, 0)]
    assert [(b.tokens, b.parent) for b in state.beams] == [((1, 1), 0), ((2, 1), 1)]


def test_when_it_stops_early() -> None:
    """Two hypotheses are there; the live beam is worse as it is, and better only if longer."""
    ends = rows({0: -1.0, 1: -1.5, 2: -9.0})
    later = rows({0: -0.6, 1: -0.7, 2: -9.0}, {0: -20.0, 1: -21.0, 2: -22.0})
    found = {}
    for early in (True, False, "never"):
        rules = Rules(2, 40, frozenset({0}), 1.0, early)
        state = advance(advance(BeamState(), ends, rules), later, rules)
        assert [h.tokens for h in state.ended] == [(0,), (1, 0)] or early
        found[early] = state.done
    assert found == {True: True, False: True, "never": False}
