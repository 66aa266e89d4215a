"""What the engine tells a drafter of a sequence."""

from collections.abc import Sequence

from workload import MockRunner

from flyweight.config import Limits
from flyweight.draft.drafter import Draft, DraftRequest, DraftSampling
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.types import Request, SamplingParams


class Recorder:
    """Keeps the requests it is asked about, and proposes nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, DraftRequest]] = []  # with the tokens there were

    def observe(self, batch: object, taps: object) -> None: ...
    def forget(self, id: object) -> None: ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += [(len(one.tokens), one) for one in requests]
        return [Draft(()) for _ in requests]


def test_a_drafter_learns_how_tokens_are_drawn_and_whose_they_are() -> None:
    limits = Limits(
        max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64, block_size=4, blocks=32,
        draft_tokens=3,
    )  # fmt: skip
    drafter = Recorder()
    scheduler = Scheduler(limits, BlockPool(limits.blocks, limits.block_size))
    engine = Engine(scheduler, MockRunner(32, 4), drafter, EngineMetrics(), ("x",))
    params = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.05, n=2, max_tokens=4)
    engine.add(Request("a", (3, 4, 5), params, max_tokens=4, seed=11, salt="tenant", adapter="x"))
    while engine.busy:
        engine.step()
    assert {one.id for _, one in drafter.asked} == {("a", 0), ("a", 1)}
    for count, one in drafter.asked:
        assert (one.tenant, one.adapter) == ("tenant", "x")
        fields = one.sampling
        assert (fields.seed, ("a", fields.choice)) == (11, one.id)
        assert (fields.temperature, fields.top_k, fields.top_p, fields.min_p) == (0.7, 5, 0.9, 0.05)
        assert fields.options is not None and fields.options.params is params
        assert one.limit == min(3, 4 - (count - 3) - 1)


def test_without_options_draws_are_greedy() -> None:
    assert DraftRequest("a", (), (), 1).sampling == DraftSampling(temperature=0)
