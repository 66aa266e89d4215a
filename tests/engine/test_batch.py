"""The batch builder, against arrays written out by hand."""

from array import array

import numpy as np

from flyweight.engine.batch import build, list_moves
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Plan
from flyweight.kv.blocks import Copy, Table
from flyweight.sampling.arrays import OptionColumns
from flyweight.types import Request, SamplingParams


def sequence(tokens, blocks, computed, draft=(), prompt=None, **rest) -> Sequence:
    prompt = len(tokens) if prompt is None else prompt
    params = SamplingParams(temperature=0.5, frequency_penalty=rest.pop("frequency_penalty", 0))
    request = Request("r", tuple(tokens[:prompt]), params, seed=9)
    table = Table(b"", array("i", blocks))
    return Sequence(
        request,
        rest.pop("index", 0),
        (0, 0, 0),
        table,
        array("i", tokens),
        None,
        computed,
        list(draft),
    )


def plan_of_three() -> Plan:
    """A prompt's first chunk, a decode, and a decode with two guesses; blocks of 2."""
    a = sequence([10, 11, 12, 13, 14], [3, 1, 6], 0)
    b = sequence([20, 21, 22, 23], [0, 5], 3, prompt=2, index=1)
    c = sequence([30, 31, 32], [4, 2, 7], 2, draft=[33, 34], prompt=1, frequency_penalty=1.0)
    plan = Plan()
    plan.add(a, 0, 3, None, 0)
    plan.add(b, 3, 1, Copy(2, 5, 1), 1)
    plan.add(c, 2, 3, None, 3)
    return plan


def test_arrays_of_a_mixed_plan():
    b = build(plan_of_three(), 2)
    expected = {
        "tokens": [10, 11, 12, 23, 32, 33, 34],
        "positions": [0, 1, 2, 3, 2, 3, 4],
        "slots": [6, 7, 2, 11, 4, 5, 14],
        "starts": [0, 3, 4, 7],
        "contexts": [3, 4, 5],
        "tables": [[3, 1, 0], [0, 5, 0], [4, 2, 7]],
        "rows": [3, 4, 5, 6],
    }
    for name, values in expected.items():
        got = getattr(b, name)
        assert got.dtype == np.int32 and got.flags.c_contiguous, name
        assert got.tolist() == values, name


def test_every_row_gets_its_position_and_history():
    s = build(plan_of_three(), 2).sampling
    assert s.position.tolist() == [4, 3, 4, 5]
    assert s.choice.tolist() == [1, 0, 0, 0]
    assert s.seed.tolist() == [9] * 4
    assert s.history_starts.tolist() == [0, 0, 3, 7, 12]
    assert s.history.tolist() == [30, 31, 32, 30, 31, 32, 33, 30, 31, 32, 33, 34]


def test_scored_rows_come_before_the_drawn_one():
    """Of a prompt of 5, the last 4 tokens computed and 2 scored before: 2 more, and a draw."""
    params = SamplingParams(prompt_logprobs=3, logprobs=1)
    request = Request("r", (10, 11, 12, 13, 14), params, seed=9)
    table = Table(b"", array("i", [3, 1, 6]))
    seq = Sequence(request, 0, (0, 0, 0), table, array("i", request.tokens), computed=1, scored=2)
    assert (seq.unscored, seq.first_row, seq.count_rows(4), seq.count_scores(4)) == (2, 2, 3, 2)
    plan = Plan()
    plan.add(seq, 1, 4, None, seq.count_rows(4), seq.count_scores(4))
    b = build(plan, 2)
    assert b.rows.tolist() == [1, 2, 3]
    assert b.sampling.given.tolist() == [13, 14, -1]
    assert b.sampling.logprobs.tolist() == [3, 3, 1]
    assert b.sampling.position.tolist() == [3, 4, 5]


def test_moves_are_slots_of_valid_tokens():
    src, dst = list_moves(plan_of_three(), 2)
    assert (src.tolist(), dst.tolist()) == ([4], [10])
    assert list_moves(Plan(plan_of_three().chunks[:1]), 2) is None


def test_a_step_without_rows():
    b = build(Plan(plan_of_three().chunks[:1]), 2)
    assert b.rows.tolist() == [] and len(b.sampling.temperature) == 0


def test_a_mask_reaches_the_sampler_whatever_the_options() -> None:
    """A hook may mask the rows of plain requests, in any step of a kept layout."""
    plan, lay, mask = plan_of_three(), OptionColumns(), np.ones(2, np.uint32)
    assert build(plan, 2, None, lay).sampling.masks is None
    masks = build(plan, 2, None, lay, {0: mask}).sampling.masks
    assert masks is not None and masks.rows.tolist() == [0]
    assert build(plan, 2, None, lay).sampling.masks is None


def test_a_text_is_not_copied_for_options_that_do_not_read_it(monkeypatch):
    def refuse(self, row):
        raise AssertionError("a copy")

    monkeypatch.setattr(Sequence, "list_seen", refuse)
    plan = Plan()
    seq = sequence([30, 31, 32], [4, 2, 7, 8], 2, draft=[33, 34, 35], prompt=1)
    plan.add(seq, 2, 4, None, 4)
    assert build(plan, 2).sampling.position.tolist() == [3, 4, 5, 6]
    seq.parents = [-1, -1, 1]
    assert [seq.find_position(row) for row in range(4)] == [3, 4, 4, 5]
