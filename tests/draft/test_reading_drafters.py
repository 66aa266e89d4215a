"""A drafter that reads texts by itself sees prompts while they are computed; one that fails at it
ends drafting for those requests only.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from small_engine import ROOMY, drain, make_engine, make_model, make_prompts, make_requests

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.engine.draft_limits import DraftCandidate, FullDrafts, OfferedDraft
from flyweight.ops.reference import ReferenceOps
from flyweight.types import Request, SamplingParams
from flyweight.wire import Batch, Tensor

CHUNKED = replace(ROOMY, max_chunk=5, max_num_batched_tokens=16, prefix_caching=False)


class PromptReader:
    """Keeps how much of each text it has seen; `fails` for one request."""

    taps = ()

    def __init__(self, fails: str = "") -> None:
        self.seen: dict[Hashable, list[list[int]]] = {}
        self.drafted: set[str] = set()
        self.fails = fails

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None: ...
    def forget(self, id: Hashable) -> None: ...

    def read(self, requests: Sequence[DraftRequest]) -> None:
        for request in requests:
            assert not request.limit
            if request.id[0] == self.fails:  # type: ignore[index]
                raise ValueError("unreadable")
            self.seen.setdefault(request.id, []).append(list(request.tokens))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.drafted |= {request.id[0] for request in requests}  # type: ignore[index]
        return [Draft((1,)) for _ in requests]


def test_prompts_are_read_as_far_as_they_are_computed() -> None:
    model, prompts = make_model(ReferenceOps("f32")), make_prompts(4)
    drafter, requests = PromptReader(), make_requests(prompts, 6)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(model), [request])
    assert drain(make_engine(model, CHUNKED, drafter), requests) == expected
    for i, prompt in enumerate(prompts):
        parts = drafter.seen[(f"r{i}", 0)]
        assert len(parts) > 1 and all(part == prompt[: len(part)] for part in parts)
        lengths = [len(part) for part in parts]
        assert lengths == sorted(lengths) and lengths[0] > 0 and lengths[-1] < len(prompt)


def test_one_that_fails_to_read_drafts_no_more_for_its_requests() -> None:
    model = make_model(ReferenceOps("f32"))
    drafter, params = PromptReader("r1"), SamplingParams(temperature=0, max_tokens=6)
    engine = make_engine(model, CHUNKED, drafter)
    for i in range(3):  # one after the other: a failure is that of all in the call
        tokens = tuple(make_prompts(3)[i])
        drain(engine, [Request(f"r{i}", tokens, params, max_tokens=6, seed=0)])
    assert drafter.drafted == {"r0", "r2"}
    assert engine.drafts.calls.drafter is not None


class NotedSeconds(FullDrafts):
    """Adds up the seconds in which a drafter read, or which it took for drafts."""

    def __init__(self, may_read: bool) -> None:
        super().__init__()
        self.may_read, self.late = may_read, 0.0

    def take(
        self, seqs: Sequence[DraftCandidate], drafts: Sequence[OfferedDraft | None], now: float,
        late: float = 0.0,
    ) -> None:  # fmt: skip
        self.late += late


class SlowReader(PromptReader):
    """Its reads take a quarter of a second, on a clock of its own; nothing else takes time."""

    now, takes = 0.0, 0.25

    def read(self, requests: Sequence[DraftRequest]) -> None:
        super().read(requests)
        self.now += self.takes


def test_reading_is_not_judged_by_its_time() -> None:
    model, drafter = make_model(ReferenceOps("f32")), SlowReader()
    drafter.takes = 30.0
    engine = make_engine(model, CHUNKED, drafter)
    engine.drafts.calls.timer.clock = lambda: drafter.now
    drain(engine, make_requests(make_prompts(2), 4))
    assert drafter.now > 30 and not engine.drafts.calls.ended
    assert drafter.drafted == {"r0", "r1"}


def test_the_time_of_reading_is_no_part_of_a_drafts_price() -> None:
    model, drafter = make_model(ReferenceOps("f32")), SlowReader()
    engine = make_engine(model, CHUNKED, drafter)
    engine.drafts.calls.timer.clock = lambda: drafter.now
    limits = engine.drafts.limits = NotedSeconds(True)
    drain(engine, make_requests(make_prompts(4), 6))
    assert limits.late == drafter.now > 0.5


def test_prompts_are_not_read_where_that_may_take_no_time() -> None:
    model, drafter = make_model(ReferenceOps("f32")), SlowReader()
    engine = make_engine(model, CHUNKED, drafter)
    engine.drafts.limits = NotedSeconds(False)
    drain(engine, make_requests(make_prompts(4), 6))
    assert not drafter.seen and drafter.drafted
