"""What a drafter that taps layers is given: the states of every token of the step, by slot."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from small_engine import ROOMY, TIGHT, drain, make_engine, make_model, make_prompts, make_requests

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.wire import Batch

B = ROOMY.block_size


class Watcher:
    """Drafts nothing; keeps the newest state of each slot and compares it with the text's own."""

    def __init__(self, model: Decoder, taps: tuple[int, ...]) -> None:
        self.model, self.taps = model, taps
        self.step: tuple[Batch, Mapping[int, Any]] | None = None
        self.compared = self.wrong = 0

    def observe(self, batch: Batch, taps: Mapping[int, Any]) -> None:
        self.wrong += set(taps) != set(self.taps)
        self.wrong += any(tap.shape != (len(batch.tokens), 32) for tap in taps.values())
        self.step = batch, taps

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        for request in requests:
            self._compare(request)
        return [Draft(())] * len(requests)

    def forget(self, id: Hashable) -> None: ...

    def _compare(self, request: DraftRequest) -> None:
        """The last computed token's states, where it is in the step."""
        assert self.step is not None
        batch, taps = self.step
        last = len(request.tokens) - 2
        rows = np.flatnonzero(batch.slots == request.blocks[last // B] * B + last % B)
        if len(rows) == 0:
            return
        expected = alone(self.model, request.tokens[: last + 1], self.taps)
        self.compared += 1
        for tap in self.taps:  # raising would only end drafting
            self.wrong += not np.allclose(taps[tap][rows[0]], expected[tap], atol=1e-5)


def alone(model: Decoder, tokens: Sequence[int], taps: Sequence[int]) -> dict[int, np.ndarray]:
    """The states of a text's last token, computed in one step without an engine."""
    engine = make_engine(model)
    count = len(tokens)
    batch = Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.arange(count, dtype=np.int32),
        slots=np.arange(count, dtype=np.int32),
        starts=np.array([0, count], np.int32),
        contexts=np.array([count], np.int32),
        tables=np.arange(-(-count // B), dtype=np.int32)[None],
        rows=np.array([count - 1], np.int32),
        sampling=None,  # type: ignore[arg-type]
    )
    kv = engine.runner.kv  # type: ignore[attr-defined]
    _, found = model.compute_tapped(batch, kv, batch.rows, taps)
    return {tap: states[-1] for tap, states in found.items()}


@pytest.mark.parametrize("limits", [ROOMY, TIGHT])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_drafter_gets_the_states_of_the_layers_it_taps(backend: str, limits: Any) -> None:
    model = make_model(CpuOps(1, None, "f32") if backend == "cpu" else ReferenceOps("f32"))
    requests = make_requests(make_prompts(6), 10)
    watcher = Watcher(model, (0, 2, -1))
    engine = make_engine(model, limits, watcher)
    assert drain(engine, requests) == drain(make_engine(model, limits), requests)
    assert watcher.compared > 40 and watcher.wrong == 0
    assert bool(engine.metrics.preempted) == (limits is TIGHT)


def test_nothing_is_tapped_without_a_drafter_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(ReferenceOps("f32"))
    monkeypatch.setattr(Decoder, "compute_tapped", None)  # calling it would raise
    quiet = Watcher(model, ())
    monkeypatch.setattr(quiet, "propose", lambda requests: [Draft(())] * len(requests))
    drain(make_engine(model, ROOMY, quiet), make_requests(make_prompts(2), 6))
    assert quiet.step is not None and quiet.step[1] == {}


def test_nothing_is_tapped_once_drafting_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(ReferenceOps("f32"))
    watcher = Watcher(model, (0, -1))
    engine = make_engine(model, ROOMY, watcher)
    engine.drafts.calls.tap = engine.runner.tap  # type: ignore[attr-defined]
    monkeypatch.setattr(watcher, "forget", None)  # calling it raises
    requests = make_requests(make_prompts(2), 6)
    expected = drain(make_engine(model, ROOMY), requests)
    assert drain(engine, requests) == expected
    assert engine.metrics.drafting_ended
    monkeypatch.setattr(Decoder, "compute_tapped", None)
    assert drain(engine, requests) == expected
