"""What draft tokens were drawn from: kept without copies, and counted in the memory plan."""

import numpy as np
import pytest

from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.draft.drafter import Draft
from flyweight.engine.proposals import DraftProbs
from flyweight.model_memory import make_memory_plan, measure_needs
from flyweight.ops.cpu import CpuOps
from flyweight.plan.machine import read_machine


def test_probabilities_are_copied_only_where_they_must_be() -> None:
    known, wide, even = DraftProbs(4), np.ones((2, 5), np.float32), np.ones((2, 4), np.float32)
    known.take("even", Draft((1, 2), probs=even))
    known.take("wide", Draft((1, 2), probs=wide))
    known.take("narrow", Draft((1, 2), probs=even[:, :3]))
    assert known.known["even"].base is even and known.known["wide"].base is wide
    assert known.known["narrow"].tolist() == [[1, 1, 1, 0]] * 2


@pytest.mark.parametrize(
    ("method", "verifier", "expected"),
    [("draft_model", "rejection", True), ("eagle", "rejection", True),
     ("draft_model", "coupled", False), ("ngram", "rejection", False)],
)  # fmt: skip
def test_the_plan_counts_probabilities_where_there_are_some(method, verifier, expected) -> None:
    config = {"method": method, "num_speculative_tokens": 2, "verifier": verifier}
    config |= {} if method == "ngram" else {"model": "m"}
    settings = Settings.of(speculative_config=config)
    assert settings.speculation is not None and settings.speculation.probs == expected
    found = describe(find(Settings()))
    needs = measure_needs(found.checkpoint, found.spec, found.plan, CpuOps(1))
    plan = make_memory_plan(settings, needs, read_machine())
    assert plan.sizing.draft_probs == expected
