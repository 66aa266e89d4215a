"""Rejection sampling: whatever is drafted, tokens have the target's distribution (chi-square), and
mistakes that are easily made are noticed.
"""

from collections.abc import Callable
from dataclasses import replace
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flyweight.ops.reference import ReferenceOps
from flyweight.ops.reference_sample import draw_uniform
from flyweight.ops.rejection import STREAMS, compute_distribution, settle_proposals, verify
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.types import SamplingParams
from flyweight.wire import Proposals

VOCAB, DRAWS = 50, 100_000
LEAST = 1e-4  # of a p-value
Reals = NDArray[np.float64]


def compute_p_value(counts: Reals, expected: Reals) -> float:
    """Of Pearson's statistic, by Wilson and Hilferty's approximation; bins of less than 5 expected
    are one.
    """
    assert not counts[expected == 0].any(), "drawn, and impossible"
    few = (expected < 5) & (expected > 0)
    kept = expected >= 5
    seen = np.append(counts[kept], counts[few].sum())
    due = np.append(expected[kept], expected[few].sum())
    seen, due = seen[due > 0], due[due > 0]
    degrees = len(due) - 1
    if degrees == 0:
        return 1.0
    x = (((seen - due) ** 2 / due).sum() / degrees) ** (1 / 3)
    spread = 2 / (9 * degrees)
    return 0.5 * erfc((x - (1 - spread)) / sqrt(2 * spread))


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw_uniforms(seed: Any, choice: Any, position: Any, stream: int = 0) -> Reals:
    """`draw_uniform` of arrays."""
    seed, choice, position = (np.array(key, np.uint64, ndmin=1) for key in (seed, choice, position))
    h = mix(seed + np.uint64(0x9E3779B97F4A7C15))
    h = mix(h ^ choice * np.uint64(0xD1B54A32D192ED03))
    h = mix(h ^ position * np.uint64(0x8CB92BA72F3D8DD7))
    if stream:
        h = mix(h ^ np.uint64(stream))
    return (h >> np.uint64(11)).astype(np.float64) * 2.0**-53


def test_the_numbers_are_the_engines() -> None:
    keys = np.arange(50)
    for stream in (0, *STREAMS):
        expected = [draw_uniform(i, i % 3, 7 * i, stream) for i in range(50)]
        assert draw_uniforms(keys, keys % 3, 7 * keys, stream).tolist() == expected


def soften(logits: Reals, temperature: float = 1.0) -> Reals:
    p = np.exp((logits - logits.max()) / temperature)
    return p / p.sum()


def cut(p: Reals, top_k: int = VOCAB, top_p: float = 1.0) -> Reals:
    """The best k, and of these the fewest that hold `top_p` of their mass."""
    order = np.argsort(-p)[:top_k]
    share = p[order] / p[order].sum()
    keep = 1 + int(np.searchsorted(share.cumsum(), top_p))
    out = np.zeros(len(p))
    out[order[:keep]] = p[order[:keep]]
    return out / out.sum()


LOGITS = np.random.default_rng(3).normal(0, 1.5, VOCAB).astype(np.float32)
OTHERS = np.random.default_rng(4).normal(0, 1.5, VOCAB)
HISTORY = [1, 2, 2, 3, 9, 9, 9, 30, 31, 32]  # of which the first two are the prompt
KNOWN, DRAWN = sorted(set(HISTORY)), HISTORY[2:]


def penalise(logits: Reals) -> Reals:
    out = logits.copy()
    for token in KNOWN:
        out[token] = out[token] / 1.5 if out[token] > 0 else out[token] * 1.5
    for token in set(DRAWN):
        out[token] -= 0.4 * DRAWN.count(token) + 0.3
    return out


LOW, HIGH = np.arange(VOCAB) < 25, np.arange(VOCAB) >= 25
WIDE = LOGITS.astype(np.float64)
CASES: dict[str, tuple[dict[str, Any], Reals, Reals]] = {  # options, what they mean, the draft's
    "plain": ({"temperature": 1.0}, soften(WIDE), soften(OTHERS)),
    "hot": ({"temperature": 2.0}, soften(WIDE, 2.0), soften(OTHERS, 0.3)),
    "disjoint": (
        {"temperature": 1.0, "allowed_token_ids": tuple(range(25))},
        cut(soften(WIDE) * LOW), cut(soften(OTHERS) * HIGH),
    ),
    "some refused": (
        {"temperature": 1.0, "allowed_token_ids": tuple(range(25))},
        cut(soften(WIDE) * LOW), soften(OTHERS),
    ),
    "top-k": ({"temperature": 1.0, "top_k": 7}, cut(soften(WIDE), 7), soften(OTHERS)),
    "top-p": ({"temperature": 0.8, "top_p": 0.7}, cut(soften(WIDE, 0.8), top_p=0.7),
              soften(OTHERS)),
    "top-k and top-p": (
        {"temperature": 1.2, "top_k": 20, "top_p": 0.8}, cut(soften(WIDE, 1.2), 20, 0.8),
        cut(soften(OTHERS), 12),
    ),
    "penalties": (
        {"temperature": 1.0, "repetition_penalty": 1.5, "frequency_penalty": 0.4,
         "presence_penalty": 0.3}, soften(penalise(WIDE)), soften(WIDE),
    ),
    "one token": ({"temperature": 1.0}, soften(WIDE), np.eye(VOCAB)[WIDE.argmax()]),
    "a token that cannot be": (
        {"temperature": 1.0, "top_k": 5}, cut(soften(WIDE), 5), np.eye(VOCAB)[WIDE.argmin()],
    ),
    "the same": ({"temperature": 1.0, "top_p": 0.9}, cut(soften(WIDE), top_p=0.9),
                 cut(soften(WIDE), top_p=0.9)),
}  # fmt: skip


def make_rows(options: dict[str, Any], count: int = 1) -> Any:
    own = [SequenceOptions(SamplingParams(**options), seed, 0, 2) for seed in range(count)]
    return columns([LogitsRow(one, len(HISTORY), HISTORY) for one in own])


def draw(q: Reals, numbers: Reals) -> NDArray[np.int32]:
    reach = q.cumsum()
    return np.searchsorted(reach, numbers * reach[-1], side="right").astype(np.int32)


def draw_verified(
    case: str, check: Callable[..., Any] = verify, keys: str = "seed"
) -> tuple[Reals, Reals]:
    """Counts of the tokens that come out, and those that are due."""
    options, expected, q = CASES[case]
    p = compute_distribution(LOGITS, make_rows(options), 0)
    varied = np.arange(DRAWS)
    given = {"seed": 11, "choice": 0, "position": 5} | {keys: varied}
    drafted = draw(q, draw_uniforms(**given))
    numbers = tuple(draw_uniforms(**given, stream=stream) for stream in STREAMS)
    q32 = np.broadcast_to(q.astype(np.float32), (DRAWS, VOCAB))
    tokens = check(np.broadcast_to(p, (DRAWS, VOCAB)), q32, drafted, numbers)
    return np.bincount(tokens, minlength=VOCAB).astype(float), expected * DRAWS


@pytest.mark.parametrize("case", CASES)
def test_the_distribution_is_the_targets(case: str) -> None:
    assert compute_p_value(*draw_verified(case)) > LEAST


@pytest.mark.parametrize("keys", ["choice", "position"])
def test_it_is_over_choices_and_over_positions_too(keys: str) -> None:
    assert compute_p_value(*draw_verified("top-k and top-p", keys=keys)) > LEAST


@pytest.mark.parametrize("case", CASES)
def test_what_is_handed_out_is_what_the_sampler_draws_from(case: str) -> None:
    options, expected, _ = CASES[case]
    p = compute_distribution(LOGITS, make_rows(options), 0)
    assert np.abs(p - expected).max() < 1e-6
    rows = make_rows(options, 4000)
    drawn = ReferenceOps().sample(np.tile(LOGITS, (4000, 1)), rows).tokens
    counts = np.bincount(drawn, minlength=VOCAB).astype(float)
    assert compute_p_value(counts, 4000 * expected) > LEAST


def test_equal_distributions_accept_everything() -> None:
    p = np.broadcast_to(soften(WIDE).astype(np.float32), (DRAWS, VOCAB))
    keys = np.arange(DRAWS)
    drafted = draw(soften(WIDE), draw_uniforms(keys, 0, 1))
    numbers = tuple(draw_uniforms(keys, 0, 1, stream) for stream in STREAMS)
    assert (verify(p, p, drafted, numbers) == drafted).all()


def test_as_many_are_accepted_as_can_be() -> None:
    """The sum of min(p, q), which no verifier exceeds."""
    p, q = soften(WIDE), soften(OTHERS)
    keys = np.arange(DRAWS)
    drafted = draw(q, draw_uniforms(keys, 0, 1))
    numbers = tuple(draw_uniforms(keys, 0, 1, stream) for stream in STREAMS)
    wide = [np.broadcast_to(x.astype(np.float32), (DRAWS, VOCAB)) for x in (p, q)]
    share = (verify(*wide, drafted, numbers) == drafted).mean()
    most = np.minimum(p, q).sum()
    assert abs(share - most) < 5 * sqrt(most * (1 - most) / DRAWS)


def forget_the_residual(p: Any, q: Any, drafted: Any, numbers: Any) -> Any:
    """The founding documents' code: after a rejection it draws from p itself."""
    return verify(p, np.where(np.arange(VOCAB) == drafted[:, None], q, 0), drafted, numbers)


def divide_the_wrong_way(p: Any, q: Any, drafted: Any, numbers: Any) -> Any:
    kept = numbers[0] * p[np.arange(len(p)), drafted] < q[np.arange(len(p)), drafted]
    return np.where(kept, drafted, verify(p, q, drafted, (np.ones(len(p)), numbers[1])))


def use_one_number_twice(p: Any, q: Any, drafted: Any, numbers: Any) -> Any:
    return verify(p, q, drafted, (numbers[0], numbers[0]))


def leave_refused_drafts_out(p: Any, q: Any, drafted: Any, numbers: Any) -> Any:
    """A draft that ends before a token that a grammar refuses, and the target's own draw there."""
    refused = p[np.arange(len(p)), drafted] == 0
    return np.where(refused, draw_rows(p, numbers[1]), verify(p, q, drafted, numbers))


def draw_rows(p: Any, numbers: Any) -> Any:
    reach = p.astype(np.float64).cumsum(axis=1)
    return (reach <= (numbers * reach[:, -1])[:, None]).sum(axis=1)


def test_leaving_refused_drafts_out_is_noticed() -> None:
    assert compute_p_value(*draw_verified("some refused", leave_refused_drafts_out)) < LEAST


@pytest.mark.parametrize("bug", [forget_the_residual, divide_the_wrong_way, use_one_number_twice])
def test_a_seeded_bug_is_noticed(bug: Callable[..., Any]) -> None:
    assert compute_p_value(*draw_verified("plain", bug)) < LEAST


# --- drafts of several tokens ---

STATES = 6
TABLE = np.random.default_rng(7).normal(0, 1.2, (STATES, STATES)).astype(np.float32)
DRAFTS = np.random.default_rng(8).normal(0, 1.2, (STATES, STATES))


def count_pairs(chains: int, order: Callable[[Reals], Reals] = lambda probs: probs) -> Reals:
    """The first two tokens after 0 of a chain of states, of which two are drafted: [S,S].  `order`
    is how the drafts' probabilities are laid.
    """
    q = np.array([soften(row) for row in DRAFTS])
    p = np.array([soften(row.astype(np.float64)) for row in TABLE])
    pairs = np.zeros((STATES, STATES))
    for seed in range(chains):
        own = SequenceOptions(SamplingParams(temperature=1.0), seed, 0, 1)
        first = int(draw(q[0], draw_uniforms(seed, 0, 1))[0])
        second = int(draw(q[first], draw_uniforms(seed, 0, 2))[0])
        rows = columns([LogitsRow(own, place, ()) for place in (1, 2, 3)])
        ids = (np.array(one, np.int32) for one in ([0, 1], [first, second], [0, 2]))
        rows = replace(rows, proposals=Proposals(*ids, order(q[[0, first]]).astype(np.float32)))
        given = settle_proposals(TABLE[[0, first, second]], rows)
        assert given[2] == -1
        one, two = int(given[0]), int(given[1])
        if one != first:  # the next step goes on from there
            assert two == -1
            two = int(draw(p[one], draw_uniforms(seed, 0, 2))[0])
        pairs[one, two] += 1
    return pairs


def expect_pairs(chains: int) -> Reals:
    p = np.array([soften(row.astype(np.float64)) for row in TABLE])
    return chains * p[0][:, None] * p


def test_texts_have_the_targets_distribution() -> None:
    assert compute_p_value(count_pairs(2500).ravel(), expect_pairs(2500).ravel()) > LEAST


def test_probabilities_that_are_indexed_backwards_are_noticed() -> None:
    pairs = count_pairs(2500, lambda probs: probs[::-1])
    assert compute_p_value(pairs.ravel(), expect_pairs(2500).ravel()) < LEAST
