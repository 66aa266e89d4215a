"""The reference's cuts against transformers' own (tests/data/sampling), and those transformers does
not have against their papers' formulas, written out anew.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.ops import reference_sample
from flyweight.ops.reference_sample import (
    OFF,
    XTC,
    adjust,
    choose,
    draw_uniform,
    find_cuts,
    sample,
    select_candidates,
)
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.types import RequestWords, SamplingParams
from flyweight.wire import F32

WARPERS = np.load(Path(__file__).parents[1] / "data" / "sampling" / "warpers.npz")
LOGITS: F32 = WARPERS["logits"]


def row(position: int = 0, mu: float = 0.0, **options: Any) -> LogitsRow:
    return LogitsRow(SequenceOptions(SamplingParams(**options), 5, 0, 0), position, (), mu)


def left(logits: F32, one: LogitsRow) -> list[int]:
    """The ids the chain leaves, best first."""
    s = columns([one])
    return select_candidates(logits, s, 0, find_cuts(s).get(0, OFF))[0].tolist()


def softmax(logits: F32, temperature: float = 1.0) -> dict[int, float]:
    """Plain Python, best first."""
    wide = [float(x) / temperature for x in logits]
    top = max(wide)
    weights = [math.exp(x - top) for x in wide]
    total = math.fsum(weights)
    order = sorted(range(len(wide)), key=lambda i: (-wide[i], i))
    return {i: weights[i] / total for i in order if weights[i] > 0}


# --- next to transformers ---


@pytest.mark.parametrize("name", [n for n in WARPERS if n.split("=")[0] in (
    "typical_p", "top_p", "min_p", "top_k")])  # fmt: skip
def test_what_stays_is_what_transformers_keeps(name: str) -> None:
    option, value = name.split("=")
    params = {option: int(value) if option == "top_k" else float(value)}
    for logits, want in zip(LOGITS, WARPERS[name], strict=True):
        assert sorted(left(logits, row(**params))) == np.flatnonzero(want).tolist()


def test_bad_words_are_banned_where_transformers_bans_them() -> None:
    words = RequestWords(bad=((7,), (3, 4), (5, 6, 8), (9, 9)))
    tokens = WARPERS["tokens"].tolist()
    rows = [LogitsRow(SequenceOptions(SamplingParams(), 0, 0, 0, (), words), 20, t) for t in tokens]
    s = columns(rows)
    for r, want in enumerate(WARPERS["bad_words"]):
        got = adjust(LOGITS[r], s, r)
        assert np.flatnonzero(np.isinf(got)).tolist() == np.flatnonzero(~want).tolist()
        assert (got[want] == LOGITS[r][want]).all()
    assert (~WARPERS["bad_words"]).sum() > 12 + 4  # 7 for all, and words begun


def test_the_repetition_penalty_is_transformers() -> None:
    options = SequenceOptions(SamplingParams(repetition_penalty=1.3), 0, 0, 0)
    s = columns([LogitsRow(options, 20, t) for t in WARPERS["tokens"].tolist()])
    for r, want in enumerate(WARPERS["repetition_penalty=1.3"]):
        np.testing.assert_allclose(adjust(LOGITS[r], s, r), want, rtol=2.0**-22)


# --- by the papers' formulas ---


@pytest.mark.parametrize("n", [0.1, 1.0, 2.5, 1000.0])
def test_top_n_sigma_keeps_what_is_near_the_best(n: float) -> None:
    for logits in LOGITS:
        wide = [float(x) for x in logits]
        mean = math.fsum(wide) / len(wide)
        sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in wide) / len(wide))
        want = [i for i, x in enumerate(wide) if x >= max(wide) - n * sigma]
        for temperature in (8.0, 30.0):  # whatever it is; candidates without weight are not listed
            got = left(logits, row(top_n_sigma=n, temperature=temperature))
            assert sorted(got) == want


def test_top_n_sigma_does_not_count_what_is_banned() -> None:
    logits = np.append(LOGITS[0], np.full(50, -np.inf)).astype(np.float32)
    assert left(logits, row(top_n_sigma=1.0)) == left(LOGITS[0], row(top_n_sigma=1.0))


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.1, 0.3, 0.5])
def test_xtc_drops_the_top_choices_but_one(threshold: float) -> None:
    for logits in LOGITS:
        p = softmax(logits)
        top = [i for i, share in p.items() if share >= threshold]
        want = list(p)[max(0, len(top) - 1) :]
        assert left(logits, row(xtc_probability=1.0, xtc_threshold=threshold)) == want
        assert left(logits, row(xtc_probability=0.0, xtc_threshold=threshold)) == list(p)


def test_xtc_has_its_probability_independent_of_the_draw() -> None:
    """Its chance is a number of its own, or it would strike the low draws only."""
    logits = np.zeros(2, np.float32)
    logits[0] = 0.5
    struck = [
        len(left(logits, row(i, xtc_probability=0.3, xtc_threshold=0.2))) == 1 for i in range(4000)
    ]
    assert abs(np.mean(struck) - 0.3) < 0.03
    u = np.array([draw_uniform(5, 0, i) for i in range(4000)])
    v = np.array([draw_uniform(5, 0, i, stream=XTC) for i in range(4000)])
    assert abs(np.corrcoef(u, v)[0, 1]) < 0.05
    assert ((v < 0.3) == struck).all()


@pytest.mark.parametrize("mu", [-3.0, 0.5, 3.0, 6.0, 30.0])
def test_mirostat_2_keeps_what_is_no_more_surprising_than_mu(mu: float) -> None:
    for logits in LOGITS:
        p = softmax(logits)
        want = [i for i, share in p.items() if -math.log2(share) <= mu] or [next(iter(p))]
        assert left(logits, row(mirostat=2, mu=mu)) == want


@pytest.mark.parametrize("mu", [0.5, 3.0, 6.0, 30.0])
def test_mirostat_1_fits_the_tail_as_the_paper_does(mu: float) -> None:
    """Basu et al., algorithm 1: s by least squares over 100 candidates, then k."""
    for logits in LOGITS:
        p = list(softmax(logits).values())
        t = [math.log((i + 2) / (i + 1)) for i in range(99)]
        b = [math.log(p[i] / p[i + 1]) for i in range(99)]
        s = math.fsum(x * y for x, y in zip(t, b, strict=True)) / math.fsum(x * x for x in t)
        e = s - 1
        k = (e * 2**mu / (1 - len(p) ** -e)) ** (1 / s)
        assert len(left(logits, row(mirostat=1, mu=mu))) == max(1, min(int(k), len(p)))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_its_target_surprise(version: int) -> None:
    """Over a hundred draws from one distribution the mean surprise comes to tau."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal(3000) * 2).astype(np.float32)
    for tau in (2.0, 4.0):
        mu, reported = 2 * tau, []
        for i in range(400):
            options = {"mirostat": version, "mirostat_tau": tau, "mirostat_eta": 0.2}
            s = columns([row(i, mu, **options)])
            ids, p = select_candidates(logits, s, 0, find_cuts(s)[0])
            token, after = choose(logits, s, 0, find_cuts(s)[0])
            surprise = -math.log2(p[ids.tolist().index(token)] / p.sum())
            assert after == pytest.approx(mu - 0.2 * (surprise - tau), abs=1e-12)
            mu = after
            reported.append(surprise)
        assert np.mean(reported[100:]) == pytest.approx(tau, abs=0.3)


def test_the_cuts_act_in_the_order_of_the_contract() -> None:
    """Each on what those before it left: sigma, top-k, typical, top-p, min-p, XTC."""
    options: dict[str, Any] = {
        "top_n_sigma": 2.0,
        "top_k": 40,
        "temperature": 1.3,
        "typical_p": 0.9,
        "top_p": 0.8,
        "min_p": 0.02,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.05,
    }
    for logits in LOGITS:
        alone = left(logits, row(top_n_sigma=2.0))[:40]
        for name in ("typical_p", "top_p", "min_p"):
            rest = np.full_like(logits, -np.inf)
            rest[alone] = logits[alone]
            alone = left(rest, row(temperature=1.3, **{name: options[name]}))
        rest = np.full_like(logits, -np.inf)
        rest[alone] = logits[alone]
        xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.05}
        assert left(logits, row(**options)) == left(rest, row(temperature=1.3, **xtc))


# --- properties ---

SOME = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(SOME, st.floats(0.01, 1), st.floats(0, 3), st.floats(0, 0.5), st.floats(-5, 20))
def test_a_candidate_survives_every_cut(
    values: Sequence[float], mass: float, n: float, threshold: float, mu: float
) -> None:
    logits = np.array(values, np.float32)
    rest = reference_sample.ban_below_sigmas(logits, n)
    assert rest.max() == logits.max()
    p = np.sort(np.exp(logits.astype(np.float64) - logits.max()))[::-1]
    assert 1 <= len(reference_sample.select_typical(p, mass)) <= len(p)
    assert 0 <= reference_sample.count_excluded(p, threshold) < len(p)
    for version in (1, 2):
        assert 1 <= reference_sample.count_mirostat(p, version, mu, 32000) <= len(p)


@pytest.mark.parametrize("options", [
    {"typical_p": 0.1}, {"top_n_sigma": 0.1}, {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"mirostat": 2}, {"mirostat": 1},
])  # fmt: skip
def test_greedy_is_greedy(options: dict[str, Any]) -> None:
    rows = [row(i, 3.0, temperature=0, **options) for i in range(len(LOGITS))]
    got = sample(LOGITS, columns(rows))
    assert (got.tokens == LOGITS.argmax(axis=1)).all()
    assert got.mu is not None and (got.mu == 3.0).all()


def test_a_narrow_typical_p_may_leave_the_best_out() -> None:
    """Which is why min-p asks for the best of those left."""
    logits = np.log(np.array([0.4] + [0.6 / 60] * 60, np.float32))
    assert 0 not in left(logits, row(typical_p=0.3))
    assert left(logits, row(typical_p=0.3, min_p=1.0)) == left(logits, row(typical_p=0.3))
