"""`sample` of every backend equals the reference draw for draw, over random options and logits."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import Make

from flyweight.ops.reference import ReferenceOps
from flyweight.sampling.arrays import Row, columns
from flyweight.sampling.options import Options
from flyweight.types import SamplingParams
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
    return SamplingParams(
        temperature=one(0, 1e-4, 0.3, 0.7, 1, 1, 2.5, 1e6),
        top_p=one(1, 1, 1e-6, 0.1, 0.5, 0.9, 0.99),
        top_k=int(one(0, 0, 1, 2, 5, 40, 10**9)),
        min_p=one(0, 0, 0.01, 0.2, 1),
        repetition_penalty=one(0.5, 1.0, 1.3, 5) if penalised else 1.0,
        presence_penalty=one(-1, 0, 0.3, 2) if penalised else 0.0,
        frequency_penalty=one(-0.7, 0, 0.1, 2) if penalised else 0.0,
        logit_bias={i: float(rng.uniform(-100, 100)) for i in ids} if rng.random() < 0.3 else {},
        min_tokens=int(rng.integers(0, 4)),
        logprobs=None if rng.random() < 0.5 else int(rng.integers(0, 21)),
    )


def row_of(rng: np.random.Generator, vocab: int) -> Row:
    length = int(rng.integers(0, 60))
    tokens = rng.integers(0, vocab, length).tolist()
    prompt = int(rng.integers(0, length + 1))
    seed, choice = int(rng.integers(0, 2**64, dtype=np.uint64)), int(rng.integers(0, 128))
    stops = rng.integers(0, vocab, int(rng.integers(0, 4))).tolist()
    options = Options(options_of(rng, vocab), seed, choice, prompt, stops)
    return Row(options, length, tokens)


def same(got: Sampled, want: Sampled) -> None:
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.ranks, want.ranks)
    np.testing.assert_array_equal(got.top_ids, want.top_ids)
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


def test_no_rows(make: Make) -> None:
    got = make().sample(np.empty((0, 9), np.float32), columns([]))
    assert got.tokens.shape == (0,) and got.top_ids.shape == (0, 0)
