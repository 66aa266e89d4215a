"""The hidden states that a model computes for texts, taken through its taps.

Invariant: the states are those of the engine's own forward pass, in half precision, each text a
sequence by itself that begins at position 0.  Knows no heads and no torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyweight.build import LoadedModel
from flyweight.engine.runner import Runner
from flyweight.sampling.arrays import columns
from flyweight.wire import I32, Batch

F16 = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class TextStates:
    """A text's tokens [T] and, by tap, their states [T,H]."""

    tokens: I32
    states: Mapping[int, F16]


def collect_states(
    loaded: LoadedModel,
    texts: Sequence[Sequence[int]],
    taps: Sequence[int],
    progress: Callable[[int], None] = lambda count: None,
) -> Iterator[TextStates]:
    """The states of every text, in order; `progress` receives how many tokens were computed."""
    limits = loaded.limits
    room = limits.blocks * limits.block_size
    waiting: list[Sequence[int]] = []
    for text in texts:
        text = text[: min(limits.max_model_len, room)]
        blocks = sum(-(-len(x) // limits.block_size) for x in (*waiting, text))
        count = sum(map(len, waiting)) + len(text)
        if waiting and (blocks > limits.blocks or count > limits.max_num_batched_tokens):
            yield from _run(loaded, waiting, taps)
            progress(sum(map(len, waiting)))
            waiting = []
        waiting.append(text)
    if waiting:
        yield from _run(loaded, waiting, taps)
        progress(sum(map(len, waiting)))


def _run(
    loaded: LoadedModel, texts: Sequence[Sequence[int]], taps: Sequence[int]
) -> Iterator[TextStates]:
    runner = loaded.engine.runner
    assert isinstance(runner, Runner)
    batch = _make_batch(texts, loaded.limits.block_size)
    _, found = runner.model.compute_tapped(batch, runner.kv, batch.rows, taps)
    with np.errstate(over="ignore"):  # becomes infinite
        host = {tap: runner.ops.fetch(rows).astype(np.float16) for tap, rows in found.items()}
    for text, start in zip(texts, batch.starts.tolist(), strict=False):
        own = slice(start, start + len(text))
        yield TextStates(batch.tokens[own], {tap: host[tap][own].copy() for tap in taps})


def _make_batch(texts: Sequence[Sequence[int]], block_size: int) -> Batch:
    """One prompt after the other, each on blocks of its own."""
    counts = [len(text) for text in texts]
    used = [-(-count // block_size) for count in counts]
    tables = np.zeros((len(texts), max(used)), np.int32)
    slots, first = [], 0
    for s, (count, blocks) in enumerate(zip(counts, used, strict=True)):
        tables[s, :blocks] = np.arange(first, first + blocks)
        slots.append(np.arange(first * block_size, first * block_size + count, dtype=np.int32))
        first += blocks
    return Batch(
        tokens=np.concatenate([np.asarray(text, np.int32) for text in texts]),
        positions=np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
        slots=np.concatenate(slots),
        starts=np.cumsum([0, *counts], dtype=np.int32),
        contexts=np.array(counts, np.int32),
        tables=tables,
        rows=np.zeros(0, np.int32),
        sampling=columns([]),
    )
