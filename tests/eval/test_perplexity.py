"""`eval ppl`: every token scored once, and the same figures as a page of NumPy."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_llama import log_probabilities

from flyweight.errors import ConfigError
from flyweight.eval.perplexity import MeanWithError, Perplexity
from flyweight.eval.session import EvalSession
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.wire import F32
from tiny_model import tiny_tensors

EXACT = {"activations": "f32", "kv_cache_dtype": "f32", "memory_limit": "8GiB"}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("context", "stride"), [(64, None), (50, 7), (128, 127)])
def test_equals_numpy(
    folder: Path, text: EvalText, backend: str, context: int, stride: int | None
) -> None:
    plan = WindowPlan(context, stride, 200)
    session = EvalSession(str(folder), text, plan, {**EXACT, "backend": backend})
    found = Perplexity.of(session.score(lambda done, total: None).logprobs)
    tensors, nll = tiny_tensors(), []
    lead = len(session.lead)
    ids = session.tokenizer.encode(text.text, add_special=False)[: 200 + 1 - lead]
    done = 1 - lead
    while done < len(ids):
        stop = context - lead if done < 2 else min(len(ids), done + (stride or context // 2))
        tokens = [*session.lead, *ids[stop - context + lead : stop]]
        rows, new = log_probabilities(tensors, tokens), stop - done
        nll += [-rows[len(tokens) - 1 - i, tokens[-i]] for i in range(new, 0, -1)]
        done = stop
    assert found.tokens == len(nll) == 200
    assert abs(found.nll.mean - np.mean(nll)) < 1e-4
    assert abs(found.value / math.exp(np.mean(nll)) - 1) < 1e-4


def test_batches_change_nothing(folder: Path, text: EvalText) -> None:
    """Windows cut into small chunks, few at a time."""
    small = {"max_num_batched_tokens": 48, "blocks": 5, "prompt_logprob_rows": 3}
    rows: list[dict[int, bytes]] = []
    found = []
    for more in ({}, small):
        session = EvalSession(str(folder), text, WindowPlan(64, 20, 150), {**EXACT, **more})
        rows.append({})

        def take(first: int, logits: F32, seen: dict[int, bytes] = rows[-1]) -> None:
            seen |= {first + i: row.tobytes() for i, row in enumerate(logits)}

        found.append(session.score(lambda done, total: None, take).logprobs)
    assert sorted(rows[0]) == list(range(150)) and rows[0] == rows[1]
    assert all((a == b).all() for a, b in zip(*found, strict=True))


def test_progress_is_reported_to_the_end(folder: Path, text: EvalText) -> None:
    session = EvalSession(str(folder), text, WindowPlan(64, None, 150), EXACT)
    reported: list[tuple[int, int]] = []
    session.score(lambda done, total: reported.append((done, total)))
    assert reported[0] == (0, 150) and reported[-1] == (150, 150) and reported == sorted(reported)


@given(st.data())
def test_windows_score_every_token_once(data: st.DataObject) -> None:
    context = data.draw(st.integers(2, 40))
    stride = data.draw(st.none() | st.integers(1, context - 1))
    lead = data.draw(st.sampled_from([(), (999,)]))
    ids = list(range(data.draw(st.integers(context, 200))))
    scored: list[int] = []
    for window in WindowPlan(context, stride).cut(ids, lead):
        assert len(window.tokens) == context and window.tokens[: len(lead)] == lead
        assert 1 <= window.new < context
        scored += window.tokens[-window.new :]
    assert scored == ids[0 if lead else 1 :]


def test_the_error_is_that_of_windows() -> None:
    draws = np.random.default_rng(0).normal(2, 1, (50, 1)) + np.zeros(20)
    found = MeanWithError.of(list(draws))  # all of a window's tokens are alike
    assert found.error == pytest.approx(draws[:, 0].std(ddof=1) / math.sqrt(50))
    assert MeanWithError.of([draws[0]]).error is None
    assert Perplexity.of([np.full(3, -800.0)]).value == math.inf


@pytest.mark.parametrize(
    ("plan", "words"),
    [((1,), "context = 1"), ((8, 8), "stride = 8"), ((8, 0), "stride = 0"),
     ((8, 4, 0), "limit_tokens = 0")],
)  # fmt: skip
def test_windows_that_cannot_be(plan: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WindowPlan(*plan)
