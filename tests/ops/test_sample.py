"""`sample` of every backend equals the reference draw for draw, over random options and logits."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import Make

from flyweight.ops.reference import ReferenceOps
from flyweight.ops.reference_sample import log_softmax
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.types import RequestWords, SamplingParams
from flyweight.wire import F32, Sampled

SIZES = (1, 2, 3, 16, 17, 33, 500, 4099)  # V


def logits_of(rng: np.random.Generator, count: int, vocab: int) -> F32:
    """Smooth rows, rows full of ties, rows with one giant, rows with ids that are out."""
    logits = rng.normal(size=(count, vocab)) * rng.choice([0.1, 1, 8], (count, 1))
    ties = rng.random(count) < 0.3
    logits[ties] = np.round(logits[ties] * 2) / 2
    peaks = np.flatnonzero(rng.random(count) < 0.1)
    logits[peaks, rng.integers(0, vocab, len(peaks))] += 60
    out = (rng.random((count, vocab)) < 0.2) & (rng.random((count, 1)) < 0.2)
    out[:, 0] = False
    return np.where(out, -np.inf, logits).astype(np.float32)


def options_of(rng: np.random.Generator, vocab: int) -> SamplingParams:
    def one(*values: float) -> float:
        return float(rng.choice(values))

    ids = rng.integers(0, vocab, int(rng.integers(0, 5))).tolist()
    penalised = rng.random() < 0.4
    cuts: dict[str, float] = {}
    if rng.random() < 0.25:
        cuts = {
            "typical_p": one(0.05, 0.5, 0.9, 1),
            "top_n_sigma": one(0, 0.5, 2, 1000),
            "xtc_probability": one(0, 0.3, 1),
            "xtc_threshold": one(0, 0.02, 0.1, 0.5),
        }
    elif rng.random() < 0.1:
        cuts = {"mirostat": int(one(1, 2)), "mirostat_tau": one(0, 2, 5)}
    allowed = rng.integers(0, vocab, int(rng.integers(1, 30))).tolist()
    usual = "mirostat" not in cuts
    return SamplingParams(
        allowed_token_ids=allowed if rng.random() < 0.2 else None,
        dry_multiplier=one(0, 0, 0, 0.8, 100),
        dry_base=one(1, 1.75, 100),
        dry_allowed_length=int(one(1, 2, 3)),
        dry_penalty_last_n=int(one(-1, 0, 20)),
        **cuts,  # type: ignore[arg-type]
        temperature=one(0, 1e-4, 0.3, 0.7, 1, 1, 2.5, 1e6),
        top_p=one(1, 1, 1e-6, 0.1, 0.5, 0.9, 0.99) if usual else 1.0,
        top_k=int(one(0, 0, 1, 2, 5, 40, 10**9)) if usual else 0,
        min_p=one(0, 0, 0.01, 0.2, 1) if usual else 0.0,
        repetition_penalty=one(0.5, 1.0, 1.3, 5) if penalised else 1.0,
        presence_penalty=one(-1, 0, 0.3, 2) if penalised else 0.0,
        frequency_penalty=one(-0.7, 0, 0.1, 2) if penalised else 0.0,
        repeat_last_n=int(one(-1, 0, 1, 7, 10**9)) if penalised else -1,
        logit_bias={i: float(rng.uniform(-100, 100)) for i in ids} if rng.random() < 0.3 else {},
        min_tokens=int(rng.integers(0, 4)),
        logprobs=None if rng.random() < 0.5 else int(rng.integers(0, 65)),
    )


def row_of(rng: np.random.Generator, vocab: int) -> LogitsRow:
    length = int(rng.integers(0, 60))
    tokens = rng.integers(0, min(vocab, int(rng.choice([3, 10**6]))), length).tolist()
    prompt = int(rng.integers(0, length + 1))
    seed, choice = int(rng.integers(0, 2**64, dtype=np.uint64)), int(rng.integers(0, 128))
    stops = rng.integers(0, vocab, int(rng.integers(0, 4))).tolist()
    bad = tuple(
        (*tokens[-int(rng.integers(1, 3)) :], int(rng.integers(0, vocab))) for _ in range(2)
    )
    words = RequestWords(
        bad if rng.random() < 0.3 else (), frozenset(rng.integers(0, vocab, 3).tolist())
    )
    options = SequenceOptions(options_of(rng, vocab), seed, choice, prompt, stops, words)
    given = int(rng.integers(0, vocab)) if rng.random() < 0.1 and not options.cut else -1
    mask = None
    if rng.random() < 0.3:
        words = rng.integers(0, 2**32, -(-vocab // 32), dtype=np.uint32)
        mask = np.where(rng.random(words.shape) < 0.7, rng.choice([0, 2**32 - 1]), words)
        mask = mask.astype(np.uint32)
    options.plain = options.plain and mask is None
    return LogitsRow(options, length, tokens, float(rng.uniform(0, 12)), given, mask)


def same(got: Sampled, want: Sampled) -> None:
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.ranks, want.ranks)
    np.testing.assert_array_equal(got.top_ids, want.top_ids)
    assert (got.mu is None) == (want.mu is None)
    if got.mu is not None and want.mu is not None:
        np.testing.assert_array_equal(got.mu, want.mu)
    for mine, truth in ((got.logprobs, want.logprobs), (got.top_logprobs, want.top_logprobs)):
        np.testing.assert_allclose(mine, truth, rtol=2.0**-22, atol=2.0**-30)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), vocab=st.sampled_from(SIZES), count=st.integers(1, 70))
def test_equal_to_the_reference(native: Make, seed: int, vocab: int, count: int) -> None:
    """About 1,400 rows a backend, each with options of its own."""
    rng = np.random.default_rng(seed)
    logits = logits_of(rng, count, vocab)
    s = columns([row_of(rng, vocab) for _ in range(count)])
    kept = logits.copy()
    same(native().sample(logits, s), ReferenceOps().sample(logits, s))
    assert (logits == kept).all()


def test_a_large_vocabulary(native: Make) -> None:
    rng = np.random.default_rng(2)
    logits = logits_of(rng, 4, 151_936)
    s = columns([row_of(rng, 151_936) for _ in range(4)])
    same(native().sample(logits, s), ReferenceOps().sample(logits, s))


def test_a_row_is_alone(make: Make) -> None:
    """Bit for bit, whatever the other rows and however many threads."""
    rng = np.random.default_rng(3)
    logits, rows = logits_of(rng, 50, 333), [row_of(rng, 333) for _ in range(50)]
    whole = make(threads=3).sample(logits, columns(rows))
    for r in range(50):
        alone = make(threads=1).sample(logits[r : r + 1], columns(rows[r : r + 1]))
        width = alone.top_ids.shape[1]
        assert alone.tokens[0] == whole.tokens[r] and alone.ranks[0] == whole.ranks[r]
        np.testing.assert_array_equal(alone.logprobs[0], whole.logprobs[r])
        np.testing.assert_array_equal(alone.top_ids[0], whole.top_ids[r, :width])
        np.testing.assert_array_equal(alone.top_logprobs[0], whole.top_logprobs[r, :width])
        if alone.mu is not None:
            assert whole.mu is not None and alone.mu[0] == whole.mu[r]


def test_listed_ids_have_their_log_probabilities(make: Make) -> None:
    """In place of the best; rows that list none have what they have alone."""
    rng = np.random.default_rng(4)
    logits = logits_of(rng, 40, 333)
    rows = []
    for _ in range(40):
        row = row_of(rng, 333)
        ids = rng.permutation(333)[: int(rng.choice([0, 1, 30, 64]))].tolist()
        params = replace(row.options.params, logprob_token_ids=tuple(ids))
        options = replace(row.options, params=params, best=None)
        options.plain = options.plain and row.mask is None
        rows.append(row._replace(options=options))
    got = make(threads=2).sample(logits, columns(rows))
    for r, row in enumerate(rows):
        ids = list(row.options.params.logprob_token_ids)
        reported, values = got.top_ids[r], got.top_logprobs[r]
        assert (reported[row.options.best or 0 :] == -1).all()
        if not ids:
            alone = make(threads=1).sample(logits[r : r + 1], columns([row]))
            np.testing.assert_array_equal(alone.top_ids[0], reported[: alone.top_ids.shape[1]])
            continue
        assert reported[: len(ids)].tolist() == ids
        want = log_softmax(logits[r])[ids]
        np.testing.assert_allclose(values[: len(ids)], want, rtol=2.0**-21)
        if got.tokens[r] in ids:
            assert values[ids.index(int(got.tokens[r]))] == got.logprobs[r]


def test_no_rows(make: Make) -> None:
    got = make().sample(np.empty((0, 9), np.float32), columns([]))
    assert got.tokens.shape == (0,) and got.top_ids.shape == (0, 0)


def test_a_given_token_is_scored_and_changes_no_draw(make: Make) -> None:
    """Its log-probability and rank are those of the token drawn, were it drawn."""
    rng = np.random.default_rng(5)
    logits, params = logits_of(rng, 20, 900), SamplingParams(logprobs=4, repetition_penalty=1.7)
    rows = [LogitsRow(SequenceOptions(params, r, 0, 0), r, [5, 6, 7][: r % 4]) for r in range(20)]
    drawn = make().sample(logits, columns(rows))
    given = [row._replace(given=int(t)) for row, t in zip(rows, drawn.tokens, strict=True)]
    same(make().sample(logits, columns(given)), drawn)
    other = [row._replace(given=899) if r % 2 else row for r, row in enumerate(rows)]
    got = make().sample(logits, columns(other))
    assert (got.tokens[1::2] == 899).all() and (got.tokens[::2] == drawn.tokens[::2]).all()
    exact = logits.astype(np.float64)
    want = exact[:, 899] - np.logaddexp.reduce(exact, axis=1)
    np.testing.assert_allclose(got.logprobs[1::2], want[1::2], rtol=1e-6)
