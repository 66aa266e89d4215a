"""Drafts that go on after the end of an answer: what is accepted is in the answer."""

from collections.abc import Sequence
from dataclasses import replace

from oracle import VOCAB, MockRunner, answer

from flyweight.config import Limits
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.ngram import NgramDrafter
from flyweight.engine.draft_limits import OfferedDraft
from flyweight.engine.drafts import end_draft
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.types import Request, SamplingParams

LIMITS = Limits(128, 4, 64, 4, 64, draft_tokens=3, vocab=VOCAB)
PROMPT = (1, 2, 1, 2, 1)


class KnownText(NgramDrafter):
    """Proposes what the model draws where nothing ends the text."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(2, 1)
        self.text = text

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        begun = [len(one.tokens) - len(PROMPT) for one in requests]
        return [
            Draft(tuple(self.text[start : start + one.limit]))
            for start, one in zip(begun, requests, strict=True)
        ]


def find_endless() -> tuple[Request, tuple[int, ...], int]:
    """A request, its text, and where a stop id would end it: a step adds 3 draft tokens and one of
    the model's own, and after the end there is another draft token.
    """
    for seed in range(50):
        request = Request("a", PROMPT, SamplingParams(), max_tokens=24, seed=seed)
        text = answer(request, 0)
        for i, token in enumerate(text):
            if i > 1 and i % 4 in (1, 2) and text.index(token) == i:
                return request, text, i
    raise AssertionError("no such text")


def test_no_draft_token_after_the_end_of_an_answer_is_accepted() -> None:
    endless, text, end = find_endless()
    scheduler = Scheduler(LIMITS, BlockPool(LIMITS.blocks, LIMITS.block_size))
    runner = MockRunner(LIMITS.blocks, LIMITS.block_size)
    engine = Engine(scheduler, runner, KnownText(text), EngineMetrics())
    engine.add(replace(endless, stop_ids=frozenset({text[end]})))
    found, drafted = list[int](), list[list[int]]()
    while engine.busy:
        for event in engine.step():
            found += event.tokens
        drafted += [list(seq.draft) for seq in scheduler.running if seq.draft]
    assert tuple(found) == text[: end + 1]
    assert drafted[-1][-1] == text[end] and len(drafted[-1]) < 3
    assert engine.metrics.accepted == sum(map(len, drafted)) < len(found)


def test_each_path_of_a_tree_ends_with_its_first_stop_id() -> None:
    tree = OfferedDraft([4, 9, 5, 9, 6], [-1, 0, 1, 0, -1])
    assert end_draft(tree, {9}) == OfferedDraft([4, 9, 9, 6], [-1, 0, 0, -1])
    assert end_draft(tree, {1}) is tree and end_draft(tree, ()) is tree
    assert end_draft(OfferedDraft([4, 9, 5, 9]), {9}) == OfferedDraft([4, 9])
