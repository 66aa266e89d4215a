"""Models whose layers are divided into stages: the bits of the whole, in micro-batches too."""

from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from harness import MODELS, batch, decoder, logits_of, memory
from hypothesis import given
from hypothesis import strategies as st

from flyweight.errors import ConfigError
from flyweight.models.decoder import SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import find_family
from flyweight.models.stages import (
    DecoderStage,
    StageRange,
    check_stages,
    cut_stage,
    divide_layers,
    split_batch,
)
from flyweight.ops.cpu import CpuOps
from flyweight.spec import Files
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.load import load
from flyweight.wire import F32, Batch

FAMILIES = sorted(path for path in MODELS.iterdir() if path.is_dir())
POST_NORM = {"opt-350m"}  # its residual is normed between layers


def load_stages(path: Path, ops: CpuOps) -> list[DecoderStage]:
    """The model in two stages."""
    checkpoint = open_checkpoint(path)
    kind = find_family(checkpoint.config)
    spec = kind.read_spec(checkpoint.config)
    files = Files(checkpoint.converted, frozenset(checkpoint.tensors), checkpoint.joined)
    plan = kind.plan(spec, files)
    check_stages(spec, 2)
    middle = len(spec.layers) // 2
    stages = []
    for index, layers in enumerate((range(middle), range(middle, len(spec.layers)))):
        own = StageRange(index, 2, layers)
        cut = cut_stage(spec, plan, own)
        parts = Parts(ops, SingleProcess(), cut.spec, load(checkpoint, cut.plan, ops))
        stages.append(DecoderStage(parts, spec.context, own))
    return stages


def run_stages(stages: list[DecoderStage], step: Batch, count: int, total: int, seqs: int) -> F32:
    """Logits of a step's rows, computed in `count` micro-batches."""
    first, last = stages
    caches = [memory(stage, total, seqs) for stage in stages]  # type: ignore[arg-type]
    hidden = np.empty((len(step.rows), first.spec.hidden), np.float32)
    for part in split_batch(step, step.rows, count):
        residual = first.embed(part.batch)
        for stage, kv in zip(stages, caches, strict=True):
            stage.run_layers(residual, part.batch, kv)
        hidden[part.places] = last.norm_rows(residual, part.rows)
    return first.compute_logits(hidden)


@dataclass(frozen=True)
class Prompts:
    """A step of two prompts, with logits of some of their tokens."""

    step: Batch
    total: int

    @classmethod
    def make(cls, vocab: int) -> "Prompts":
        chunks = [(np.arange(3, 24) % vocab, 0), (np.arange(40, 51) % vocab, 0)]
        return cls(batch(chunks, 21, np.array([0, 7, 20, 21, 31])), 21)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.name)
def test_two_stages_give_the_bits_of_the_whole(path: Path, count: int) -> None:
    ops = CpuOps(1, None, "f32")
    if path.name in POST_NORM:
        with pytest.raises(ConfigError, match="norms its residual between layers; allowed: 1"):
            load_stages(path, ops)
        return
    whole = decoder(path, ops)
    prompts = Prompts.make(whole.spec.vocab)
    expected = logits_of(whole, prompts.step, memory(whole, prompts.total, 2))
    found = run_stages(load_stages(path, ops), prompts.step, count, prompts.total, 2)
    assert np.array_equal(found, expected)


def test_more_stages_than_layers_are_refused() -> None:
    spec = decoder(MODELS / "llama3", CpuOps(1, None, "f32")).spec
    layers = len(spec.layers)
    with pytest.raises(ConfigError, match=f"above the model's {layers} layers; nearest valid"):
        check_stages(spec, layers + 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 12), st.data())
def test_layers_are_divided_so_that_the_dearest_stage_costs_least(
    costs: list[int], head: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(costs)))

    def dearest(ends: tuple[int, ...]) -> int:
        stages = [sum(costs[a:b]) for a, b in pairwise((0, *ends, len(costs)))]
        return max(stages[0] + head, *stages[1:], 0)

    found = divide_layers(costs, head, count)
    assert [i for layers in found for i in layers] == [*range(len(costs))]
    assert len(found) == count and all(found)
    best = min(dearest(ends) for ends in combinations(range(1, len(costs)), count - 1))
    assert dearest(tuple(layers.stop for layers in found[:-1])) == best


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5), st.data())
def test_micro_batches_hold_each_token_and_row_once(
    shapes: list[tuple[int, int]], data: st.DataObject
) -> None:
    chunks = [(np.arange(count), start) for count, start in shapes]
    tokens = sum(count for count, _ in shapes)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, tokens - 1)))), np.int32)
    step = batch(chunks, 20, rows)
    found = split_batch(step, rows, data.draw(st.integers(1, 6)))
    for name in ("tokens", "positions", "slots"):
        parts = [getattr(part.batch, name) for part in found]
        assert np.array_equal(np.concatenate(parts), getattr(step, name))
    assert np.array_equal(np.concatenate([part.places for part in found]), np.arange(len(rows)))
    for part in found:
        own = part.batch
        assert len(own.starts) == len(own.contexts) + 1 == len(own.tables) + 1
        assert own.starts[-1] == len(own.tokens)
        assert np.array_equal(own.positions[own.starts[1:] - 1] + 1, own.contexts)
        owners = np.repeat(np.arange(len(own.contexts)), np.diff(own.starts))
        blocks = own.tables[owners, own.positions // 16]
        assert np.array_equal(blocks * 16 + own.positions % 16, own.slots)
