"""Steps that a graph replays: the bits of other steps, and no padding outside them.

Without a GPU nothing is captured, and the padded body runs in place of its graph.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flyweight.models.decoder import Decoder
from flyweight.ops.cuda.backend import CudaOps
from flyweight.ops.cuda.graphs import Graphs
from flyweight.wire import F32, Batch

sys.path.insert(0, str(Path(__file__).parents[2] / "model"))

from harness import MODELS, batch, decoder, memory

FIRST = 2  # tokens of each prompt
SEQUENCES = 3  # a size that is padded


class PlainBodies:
    """In place of `Graphs`: runs what it is given, and notes its rows."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def run(self, step: Any, owner: Any, body: Any) -> Any:
        self.rows.append(len(step.tokens))
        return body(step)


def load(device: str, graphs: bool) -> tuple[Decoder, CudaOps, PlainBodies]:
    ops, plain = CudaOps(device), PlainBodies()
    model = decoder(MODELS / "llama3", ops)
    ops.graphs = graphs
    if device == "cpu":
        ops._graphs = plain  # type: ignore[assignment]
    return model, ops, plain


def steps() -> tuple[Batch, Batch]:
    """A prompt of each sequence, and the token after it."""
    rng = np.random.default_rng(7)
    prompts = [(rng.integers(3, 60, FIRST), 0) for _ in range(SEQUENCES)]
    nexts = [(rng.integers(3, 60, 1), FIRST) for _ in range(SEQUENCES)]
    total = FIRST + 1
    return batch(prompts, total, np.zeros(0, np.int32)), batch(nexts, total, np.arange(SEQUENCES))


def compute(model: Decoder, kv: Sequence[Any]) -> F32:
    """The hidden states of the second step."""
    first, second = steps()
    model.compute_hidden(first, kv, first.rows)
    return np.array(model.ops.fetch(model.compute_hidden(second, kv, second.rows)))


def test_replayed_steps_have_the_bits_of_others(device: str) -> None:
    """Also where two models, of which one has more blocks, take turns."""
    model, ops, plain = load(device, graphs=True)
    kv = memory(model, FIRST + 1, SEQUENCES, "bf16")
    more = memory(model, FIRST + 1, 2 * SEQUENCES, "bf16")
    got = [compute(model, one) for one in (kv, more, kv)]
    ops.graphs = False
    want = compute(model, memory(model, FIRST + 1, SEQUENCES, "bf16"))
    assert all((one == want).all() for one in got)
    assert device == "cuda" or plain.rows == [4] * 3


def test_other_ops_see_no_padding(device: str) -> None:
    """A drafter's layer reads the tokens of a batch next to states of as many rows."""
    model, ops, plain = load(device, graphs=True)
    _, second = steps()
    kv = memory(model, FIRST + 1, SEQUENCES, "bf16")
    tap = len(model.layers) - 2
    model.compute_hidden(second, kv, second.rows)
    hidden, taps = model.compute_tapped(second, kv, second.rows, (tap,))
    assert len(hidden) == len(taps[tap]) == SEQUENCES
    ops.begin(second)
    assert len(ops.embed(model.parts.weights["embed"], second.tokens)) == SEQUENCES
    assert device == "cuda" or plain.rows == [4]


def test_each_model_has_its_own_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its K/V is there."""
    made: list[str] = []

    class Steps:
        def __init__(self) -> None:
            made.append("made")

        def run(self, step: Any, body: Any) -> Any:
            return body(step)

        def __del__(self) -> None:
            made.append("gone")

    monkeypatch.setattr("flyweight.ops.cuda.graphs.CapturedSteps", Steps)
    graphs, target, draft = Graphs(), torch.empty(2), torch.empty(2)
    for owner in (target, draft, target, draft):
        step: Any = SimpleNamespace(tokens=3)
        assert graphs.run(step, owner, lambda step: step.tokens) == 3
    assert made == ["made"] * 2
    del owner, draft
    assert made == ["made", "made", "gone"]


@pytest.mark.parametrize("count", [1, 4])
def test_sizes_without_padding(device: str, count: int) -> None:
    model, _, plain = load(device, graphs=True)
    kv = memory(model, 2, count, "bf16")
    step = batch([(np.array([9]), 0)] * count, 2, np.arange(count))
    assert len(model.compute_hidden(step, kv, step.rows)) == count
    assert device == "cuda" or plain.rows == [count]
