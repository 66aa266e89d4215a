"""The sampler's specification against independent arithmetic; the columns; the two verifiers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.engine.drafts import accept_drafts
from flyweight.ops.reference_sample import compute_exp32, compute_weights, draw_uniform, sample
from flyweight.sampling.arrays import LogitsRow, OptionColumns, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.types import RequestWords, SamplingParams
from flyweight.wire import CutRow, Sampled

LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 0.0, 1.0, -3.0, 0.25], np.float32)


def row(
    position: int = 0, tokens: Sequence[int] = (), prompt: int = 0, **options: Any
) -> LogitsRow:
    params = SamplingParams(**options)
    return LogitsRow(SequenceOptions(params, 5, 0, prompt), position, tokens)


def draw(*rows: LogitsRow, logits: np.ndarray = LOGITS) -> Sampled:
    return sample(np.tile(logits, (len(rows), 1)), columns(rows))


def chi_square(counts: dict[int, int], expected: dict[int, float]) -> float:
    """Pearson's statistic; every drawn id must be one of the expected."""
    assert set(counts) <= set(expected)
    total = sum(counts.values())
    return sum((counts.get(i, 0) - total * p) ** 2 / (total * p) for i, p in expected.items())


def softmax(logits: dict[int, float], temperature: float = 1.0) -> dict[int, float]:
    weights = {i: math.exp(v / temperature) for i, v in logits.items()}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def draws(count: int, **options: Any) -> dict[int, int]:
    tokens = draw(*(row(position, **options) for position in range(count))).tokens
    ids, counts = np.unique(tokens, return_counts=True)
    return {int(i): int(c) for i, c in zip(ids, counts, strict=True)}


# --- randomness ---


def test_uniform_is_the_splitmix_chain() -> None:
    """Against machine arithmetic on 64-bit words; the last figure guards the contract."""

    def mix(z: np.uint64) -> np.uint64:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        for seed in [0, 1, 2**64 - 1, *map(int, rng.integers(0, 2**63, 20))]:
            for choice, position in ((0, 0), (3, 17), (127, 2**31 - 1)):
                h = mix(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15))
                h = mix(h ^ np.uint64(choice) * np.uint64(0xD1B54A32D192ED03))
                h = mix(h ^ np.uint64(position) * np.uint64(0x8CB92BA72F3D8DD7))
                assert draw_uniform(seed, choice, position) == int(h >> np.uint64(11)) / 2**53
    assert draw_uniform(1, 2, 3) == 0.4785191720870067


def test_uniform_is_uniform_along_each_key() -> None:
    keys: list[Callable[[int], float]] = [
        lambda i: draw_uniform(i, 0, 0),
        lambda i: draw_uniform(7, i, 5),
        lambda i: draw_uniform(7, 0, i),
    ]
    for key in keys:
        counts = np.histogram([key(i) for i in range(10000)], 16, (0, 1))[0]
        assert ((counts - 625) ** 2 / 625).sum() < 45  # 15 degrees of freedom, p < 1e-4


# --- the order of application ---


def test_temperature_draws_from_the_softmax() -> None:
    for temperature in (0.3, 1.0, 2.5):
        expected = softmax(dict(enumerate(LOGITS.tolist())), temperature)
        assert chi_square(draws(3000, temperature=temperature), expected) < 30  # 7 degrees


def test_top_k_keeps_the_best_ties_by_lower_id() -> None:
    assert set(draws(200, top_k=1)) == {1}
    assert chi_square(draws(1500, top_k=2), {1: 0.5, 3: 0.5}) < 12
    expected = softmax({1: 2.0, 3: 2.0, 5: 1.0})
    assert chi_square(draws(1500, top_k=3), expected) < 16
    assert set(draws(2000, top_k=10**12)) == set(range(8))


def test_top_p_keeps_the_shortest_prefix() -> None:
    p = softmax(dict(enumerate(LOGITS.tolist())))
    assert set(draws(200, top_p=p[1] * 0.99)) == {1}
    assert set(draws(200, top_p=p[1] * 1.01)) == {1, 3}
    assert set(draws(200, top_p=p[1] * 2.01)) == {1, 3, 5}
    assert set(draws(2000, top_p=1.0)) == set(range(8))
    assert set(draws(200, top_p=0.51, top_k=2)) == {1, 3}  # of what top-k left
    assert set(draws(200, top_p=0.49, top_k=2)) == {1}


def test_min_p_is_relative_to_the_best() -> None:
    assert set(draws(300, min_p=1.0)) == {1, 3}
    assert set(draws(300, min_p=math.exp(-1) * 0.99)) == {1, 3, 5}
    assert set(draws(300, min_p=math.exp(-1) * 1.01)) == {1, 3}
    assert set(draws(300, min_p=math.exp(-0.5) * 0.99, temperature=2.0)) == {1, 3, 5}


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert draw(row(temperature=0)).tokens[0] == 1
    assert draw(row(temperature=0, logit_bias={3: 0.5})).tokens[0] == 3
    assert draw(row(temperature=0, logit_bias={1: -100, 3: -100})).tokens[0] == 5


def test_penalties() -> None:
    """By hand: repetition on prompt and output, presence and frequency on output alone."""
    seen: dict[str, Any] = dict(tokens=[1, 6, 3, 3, 5], prompt=2, temperature=0)
    assert draw(row(**seen, repetition_penalty=1.9)).tokens[0] == 1  # 2/1.9 above 1/1.9 and 0.5
    assert draw(row(**seen, repetition_penalty=5.0)).tokens[0] == 0  # 2/5 is below 0.5
    assert draw(row(**seen, presence_penalty=2.0)).tokens[0] == 1  # the prompt's own is untouched
    bias = {1: -100.0}
    assert draw(row(**seen, logit_bias=bias)).tokens[0] == 3
    assert draw(row(**seen, logit_bias=bias, presence_penalty=0.4)).tokens[0] == 3  # 1.6 > 0.6
    assert draw(row(**seen, logit_bias=bias, frequency_penalty=0.8)).tokens[0] == 0  # 0.4, 0.2
    assert draw(row(**seen, logit_bias=bias, frequency_penalty=-0.8)).tokens[0] == 3


def test_penalties_look_at_a_window() -> None:
    """The last tokens alone, the prompt's too for repetition; presence counts those generated."""
    seen: dict[str, Any] = dict(tokens=[1, 6, 3, 3, 5], prompt=3, temperature=0)
    drawn = {n: draw(row(**seen, repetition_penalty=9.0, repeat_last_n=n)).tokens[0]
             for n in (-1, 0, 1, 2, 4, 5, 99)}  # fmt: skip
    assert drawn == {-1: 0, 0: 1, 1: 1, 2: 1, 4: 1, 5: 0, 99: 0}  # 1 is the fifth from the end
    hot = {"logit_bias": {1: -100.0}, "presence_penalty": 1.9}
    drawn = {n: draw(row(**seen, **hot, repeat_last_n=n)).tokens[0] for n in (-1, 0, 1, 2, 5)}
    assert drawn == {-1: 0, 0: 3, 1: 3, 2: 0, 5: 0}  # 3 was generated once, second from the end
    s = columns([row(5, **seen, presence_penalty=1.0, repeat_last_n=n) for n in (-1, 4, 2, 1, 0)])
    assert s.history_starts.tolist() == [0, 5, 9, 11, 12, 12]
    assert s.prompt.tolist() == [3, 2, 0, 0, 0]


def test_repetition_raises_nothing_that_is_negative() -> None:
    logits = np.array([-1.0, -1.5], np.float32)
    assert draw(row(tokens=[0], temperature=0), logits=logits).tokens[0] == 0
    penalised = row(tokens=[0], temperature=0, repetition_penalty=2.0)  # -1 becomes -2
    assert draw(penalised, logits=logits).tokens[0] == 1


def test_stop_ids_are_banned_until_min_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=3)
    banned = SequenceOptions(params, 5, 0, 0, frozenset({1, 3}))
    rows = [LogitsRow(banned, i, ()) for i in range(5)]
    assert draw(*rows).tokens.tolist() == [5, 5, 5, 1, 1]
    everything = LogitsRow(SequenceOptions(params, 5, 0, 0, range(8)), 0, ())
    assert draw(everything).tokens[0] == 0  # nothing left: the lowest id, not a crash


def test_logprobs_are_raw() -> None:
    """Of the logits as given, whatever bias, temperature and penalties made of the draw."""
    want = {i: math.log(p) for i, p in softmax(dict(enumerate(LOGITS.tolist()))).items()}
    got = draw(
        row(logprobs=3, temperature=0, logit_bias={6: 100}),
        row(logprobs=0, temperature=0),
        row(temperature=0),
        row(logprobs=20, temperature=0),
    )
    assert got.tokens.tolist() == [6, 1, 1, 1] and got.ranks.tolist() == [8, 1, 0, 1]
    assert got.logprobs[:2].tolist() == pytest.approx([want[6], want[1]], rel=1e-6)
    assert math.isnan(got.logprobs[2]) and got.top_ids.shape == (4, 20)
    assert got.top_ids[0].tolist() == [1, 3, 5] + [-1] * 17
    assert got.top_logprobs[0, :3].tolist() == pytest.approx([want[i] for i in (1, 3, 5)], rel=1e-6)
    assert np.isnan(got.top_logprobs[0, 3:]).all() and (got.top_ids[1:3] == -1).all()
    assert got.top_ids[3, :8].tolist() == [1, 3, 5, 0, 7, 4, 2, 6]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_a_row_is_alone(seed: int, count: int) -> None:
    """The same rows give the same tokens and logprobs in any company and order."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, 50)).astype(np.float32)
    rows = [
        LogitsRow(
            SequenceOptions(
                SamplingParams(temperature=float(rng.choice([0, 1])), top_p=0.9, logprobs=2),
                seed=int(rng.integers(2**63)),
                choice=int(rng.integers(4)),
                prompt=0,
            ),
            position=i,
            tokens=(),
        )
        for i in range(count)
    ]
    whole = sample(logits, columns(rows))
    for r in rng.permutation(count)[:5]:
        alone = sample(logits[r : r + 1], columns([rows[r]]))
        assert alone.tokens[0] == whole.tokens[r] and alone.logprobs[0] == whole.logprobs[r]


# --- columns ---


def test_columns_lay_rows_end_to_end() -> None:
    rows = [
        row(3, [1, 2, 3], 2, temperature=0.5, top_k=4, seed=1),
        row(4, [7, 8, 9, 9], 3, presence_penalty=0.5, logit_bias={5: 1.5, 2: -3}, logprobs=2),
        LogitsRow(SequenceOptions(SamplingParams(min_tokens=2), -1, 6, 1, frozenset({3})), 1, [4]),
    ]
    s = columns(rows)
    assert s.temperature.tolist() == [0.5, 1, 1] and s.top_k.tolist() == [4, 0, 0]
    assert s.seed.tolist() == [5, 5, 2**64 - 1] and s.choice.tolist() == [0, 0, 6]
    assert s.position.tolist() == [3, 4, 1] and s.logprobs.tolist() == [-1, 2, -1]
    assert s.history.tolist() == [7, 8, 9, 9] and s.history_starts.tolist() == [0, 0, 4, 4]
    assert s.prompt.tolist() == [0, 3, 0]  # of the history that is there
    assert s.bias_ids.tolist() == [5, 2] and s.bias_values.tolist() == [1.5, -3]
    assert s.bias_starts.tolist() == [0, 0, 2, 2]
    assert s.banned_ids.tolist() == [3] and s.banned_starts.tolist() == [0, 0, 0, 1]
    assert s.penalties.tolist() == [[1, 0, 0], [1, 0.5, 0], [1, 0, 0]]


def test_columns_of_the_rarer_options() -> None:
    words = RequestWords(bad=((3, 7), (8,)))
    stops = SequenceOptions(SamplingParams(min_tokens=9), 0, 0, 1, (2,), words)
    rows = [
        row(1, [0], allowed_token_ids=[5, 2]),
        LogitsRow(stops, 3, [3, 0, 3]),
        row(0)._replace(given=6),
        row(2, [0, 1], typical_p=0.5, xtc_probability=0.25)._replace(mu=1.5),
        row(2, [0, 1], mirostat=2, mirostat_tau=3.0)._replace(mu=2.5),
    ]
    s = columns(rows)
    assert s.allowed_ids.tolist() == [2, 5] and s.allowed_starts.tolist() == [0, 2, 2, 2, 2, 2]
    assert s.banned_ids.tolist() == [2, 7, 8] and s.banned_starts.tolist() == [0, 0, 3, 3, 3, 3]
    assert s.given.tolist() == [-1, -1, 6, -1, -1]
    assert s.cuts is not None and s.cuts.rows.tolist() == [3, 4]
    one, other = (CutRow(*values) for values in s.cuts.values.tolist())
    assert (one.mu, other.mu) == (1.5, 2.5) and (one.mirostat, other.mirostat) == (0, 2)
    assert (one.typical_p, other.typical_p) == (0.5, 1)
    assert (one.xtc_probability, other.xtc_probability) == (0.25, 0)
    assert (one.mirostat_tau, other.mirostat_tau) == (5, 3)
    for cut in (one, other):
        assert (cut.top_n_sigma, cut.xtc_threshold, cut.mirostat_eta) == (0, 0.1, 0.1)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_columns_are_of_the_wire(count: int) -> None:
    s = columns([row()] * count)
    for name in s.__slots__:
        array = getattr(s, name)
        if name in ("cuts", "masks", "listed", "proposals"):
            assert array is None
            continue
        assert array.flags.c_contiguous, name
        starts = name.endswith("_starts")
        lists = ("bias_ids", "bias_values", "allowed_ids", "banned_ids")
        ragged = name in ("history", "repeat_ids", "repeat_values", *lists)
        assert len(array) == (0 if ragged else count + starts), name
        real = ("temperature", "top_p", "min_p", "penalties", "bias_values", "repeat_values")
        kind = np.float32 if name in real else np.uint64 if name == "seed" else np.int32
        assert array.dtype == kind, name


# --- verifiers ---


@pytest.mark.parametrize(
    ("draft", "sampled", "accepted"),
    [
        ([], [4], [4]),
        ([4], [4, 5], [4, 5]),
        ([4], [3, 5], [3]),
        ([1, 2, 3], [1, 2, 9, 7], [1, 2, 9]),
        ([1, 2, 3], [1, 2, 3, 7], [1, 2, 3, 7]),
        ([1, 2, 3], [9, 2, 3, 7], [9]),
    ],
)
def test_accept(draft: list[int], sampled: list[int], accepted: list[int]) -> None:
    assert accept_drafts(draft, sampled) == accepted


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_accept_writes_what_the_target_would(draft: list[int], stream: list[int]) -> None:
    """A target whose token at a place is fixed: accepted tokens are its own, at least one."""
    accepted = accept_drafts(draft, stream[: len(draft) + 1])
    assert accepted == stream[: len(accepted)] and 1 <= len(accepted) <= len(draft) + 1


def test_columns_step_after_step_are_those_laid_out_anew() -> None:
    lay = OptionColumns()
    plain, other = row(), row(temperature=0.3, logprobs=2)
    penalised = row(repetition_penalty=1.2)
    steps = [[plain], [plain], [plain, other], [other, plain], [plain, penalised], [plain], []]
    for position, rows in enumerate(steps):
        moved = [r._replace(position=10 + position) for r in rows]
        got, wanted = lay(moved), columns(moved)
        for field in fields(wanted):
            ours, theirs = getattr(got, field.name), getattr(wanted, field.name)
            assert ours is None if theirs is None else np.array_equal(ours, theirs), field.name


def test_weights_are_exponentials() -> None:
    """Within 3 ulp from 0 to -87, and nothing next to 1 below."""
    x = np.concatenate([-np.geomspace(1e-8, 87, 20_001), [0.0]]).astype(np.float32)
    near = np.exp(x.astype(np.float64))
    assert (np.abs(compute_exp32(x) - near) <= 3 * np.spacing(near.astype(np.float32))).all()
    assert compute_exp32(np.float32([0.0])) == 1
    assert (compute_exp32(np.float32([-87.5, -1e30, -np.inf])) < 1e-37).all()


@pytest.mark.parametrize("temperature", [1e-4, 0.7, 1e6, 1e-38])
def test_weights_of_any_temperature_are_numbers(temperature: float) -> None:
    logits = np.float32([30.0, 30.0, 29.999, -1e30])
    p = compute_weights(logits, np.float32(temperature))
    assert p[0] == p[1] == 1 and (np.diff(p) <= 0).all() and (p >= 0).all()
