"""Where a cascade's draft ends: by the product of the best tokens' probabilities, whatever token
was drawn.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from flyweight.draft.handover import WRITE_ON, HandOver
from flyweight.sampling.options import SequenceOptions
from flyweight.sampling_params import SamplingParams
from flyweight.wire import Sampled


def drawn(best: list[float], tokens: list[int], own: list[float]) -> Sampled:
    """Tokens with probabilities of their own, next to those of the best."""
    count, none = len(tokens), np.zeros(len(tokens), np.int32)
    scores = np.log(np.array(best, np.float32)).reshape(count, 1)
    own_scores = np.log(np.array(own, np.float32))
    return Sampled(np.array(tokens, np.int32), own_scores, none, none.reshape(count, 1), scores)


def test_a_draft_ends_before_its_probability_falls_below_the_least() -> None:
    rows = [SimpleNamespace(sure=1.0), SimpleNamespace(sure=1.0)]
    hand_over = HandOver(0.3)
    for best, expected in (([0.9, 0.6], [7, 8]), ([0.9, 0.6], [7, 8]), ([0.9, 0.6], [7, -1])):
        found = drawn(best, [7, 8], [0.1, 0.1])
        assert hand_over.end_drafts(rows, found, found.tokens).tolist() == expected
    assert [row.sure for row in rows] == pytest.approx([0.9**3, 0.6**3])


def test_the_end_does_not_depend_on_the_token_that_was_drawn() -> None:
    """With the target's residual distribution, tokens would be too frequent otherwise."""
    ends = []
    for token, own in ((1, 0.4), (2, 0.001)):
        rows = [SimpleNamespace(sure=before) for before in (1.0, 0.5, 0.2)]
        found = drawn([0.4] * 3, [token] * 3, [own] * 3)
        ends.append((HandOver(0.15).end_drafts(rows, found, found.tokens) < 0).tolist())
    assert ends == [[False, False, True]] * 2


def test_without_a_least_no_scores_are_requested() -> None:
    options = SequenceOptions(SamplingParams(temperature=0), 1, 0, 0)
    assert WRITE_ON.request_scores(options) is options
    assert HandOver(0.1).request_scores(options).best == 1
    assert options.best is None
