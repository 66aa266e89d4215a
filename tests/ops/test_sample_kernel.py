"""The native sampler where it cuts rows: several segments, the ladder's buckets, hostile logits.

What `sample` means is tested in test_sample.py; here are the shapes only this kernel cares about.
"""

import numpy as np
import pytest
from op_cases import Make
from test_sample import logits_of, row_of, same

from flyweight.ops.reference import ReferenceOps
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.types import SamplingParams
from flyweight.wire import F32, Sampled

SEGMENT = 16384  # native/sample.cpp


def rows_of(count: int, **options: object) -> list[LogitsRow]:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    return [LogitsRow(SequenceOptions(params, 7, r, 0), 5 + r, []) for r in range(count)]


def drawn(make: Make, logits: F32, **options: object) -> Sampled:
    return make(threads=3).sample(logits, columns(rows_of(len(logits), **options)))


@pytest.mark.parametrize("vocab", [SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 17])
def test_segments(native: Make, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = logits_of(rng, 20, vocab)
    s = columns([row_of(rng, vocab) for _ in range(20)])
    same(native(threads=3).sample(logits, s), ReferenceOps().sample(logits, s))


@pytest.mark.parametrize("top_k", [63, 64, 65, 1000, 19_999])
@pytest.mark.parametrize("spread", [0.01, 4.0])
def test_short_lists_and_long_ones(native: Make, top_k: int, spread: float) -> None:
    rng = np.random.default_rng(top_k)
    logits = rng.normal(0, spread, (12, 20_000)).astype(np.float32)
    for options in ({}, {"top_p": 0.7}, {"min_p": 0.3}, {"temperature": 5.0, "top_p": 0.99}):
        s = columns(rows_of(12, top_k=top_k, logprobs=20, **options))
        same(native().sample(logits, s), ReferenceOps().sample(logits, s))


def test_all_logits_equal(native: Make) -> None:
    """One bucket holds everything: the ids come in order, and the draw is u * V."""
    logits = np.full((50, SEGMENT + 5), 3.5, np.float32)
    s = columns(rows_of(50, logprobs=3))
    same(native().sample(logits, s), ReferenceOps().sample(logits, s))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers(native: Make, temperature: float) -> None:
    """NaN counts as banned; nothing crashes and every token is in the vocabulary."""
    logits = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)
    logits[0, :] = np.nan
    logits[1, ::2] = np.nan
    logits[2, 40] = np.inf
    logits[3, :] = -np.inf
    for top_k in (0, 5):
        got = drawn(native, logits, temperature=temperature, top_k=top_k, logprobs=5).tokens
        assert got[0] == 0
        assert got[1] % 2 == 1
        assert got[2] == 40
        assert got[3] == 0


@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("min_p", [2.0, np.nan])
def test_a_min_p_nothing_reaches_leaves_the_best(native: Make, min_p: float, top_k: int) -> None:
    """No request gets here with one (types.py); it must not read before the list either."""
    logits = np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float32)
    s = columns(rows_of(4, top_k=top_k))
    s.min_p[:] = min_p
    got = native().sample(logits, s).tokens
    assert (got >= 0).all() and (got < 1000).all()
    assert np.isnan(min_p) or (got == logits.argmax(axis=1)).all()


def test_ids_outside_the_vocabulary_are_refused(native: Make) -> None:
    logits = np.zeros((1, 10), np.float32)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        drawn(native, logits, logit_bias={10: 1.0})
    row = LogitsRow(SequenceOptions(SamplingParams(repetition_penalty=2.0), 0, 0, 1), 1, [10])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        native().sample(logits, columns([row]))
    with pytest.raises(ValueError, match="number of rows"):
        native().sample(np.zeros((2, 10), np.float32), columns(rows_of(1)))
