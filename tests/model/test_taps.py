"""Tapped layers: the states are those of a model that ends there, and nothing else changes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import BLOCK, MODELS, batch, decoder, memory

from flyweight.errors import ConfigError
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps

FAMILIES = ["gemma3", "gpt-neox", "gpt2", "llama3", "mixtral", "olmo2", "qwen3", "qwen3-moe-step"]
TOKENS = 21


def make(name: str) -> Any:
    return CpuOps(2, None, "bf16") if name == "cpu" else ReferenceOps("f32")


def steps(model: Decoder) -> list[Any]:
    """A prompt, then a chunk of it with another sequence's decode, then a decode of both."""
    tokens = np.random.default_rng(3).integers(0, model.spec.vocab, 3 * TOKENS).astype(np.int32)
    whole = [(tokens[:TOKENS], 0), (tokens[TOKENS : TOKENS + 5], 0)]
    more = [(tokens[TOKENS + 5 : TOKENS + 9], TOKENS), (tokens[-1:], 5)]
    last = [(tokens[:1], TOKENS + 4), (tokens[1:2], 6)]
    return [
        batch(whole, 2 * BLOCK, np.array([TOKENS - 1, TOKENS + 4])),
        batch(more, 2 * BLOCK, np.array([1, 3, 4])),
        batch(last, 2 * BLOCK, np.array([0, 1])),
    ]


def run(model: Decoder, taps: Sequence[int] | None) -> list[Any]:
    """Each step's hidden states and what was tapped."""
    kv, found = tuple(memory(model, 2 * BLOCK, 2)), []
    for step in steps(model):
        if taps is None:
            found.append((model.compute_hidden(step, kv, step.rows), {}))
        else:
            found.append(model.compute_tapped(step, kv, step.rows, taps))
    return found


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.isfinite(a).all()) and np.array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_those_of_a_model_that_ends_there(name: str, backend: str) -> None:
    ops = make(backend)
    model = decoder(MODELS / name, ops)
    count = len(model.spec.layers)
    plain, tapped = run(model, None), run(model, [*range(count), -1, count])
    for (expected, _), (hidden, taps), step in zip(plain, tapped, steps(model), strict=True):
        assert same(hidden, expected)
        assert same(taps[-1][step.rows], expected) and taps[count] is taps[-1]
        assert all(tap.shape == (len(step.tokens), model.spec.hidden) for tap in taps.values())
    for i in range(count):
        ends = decoder(
            MODELS / name,
            ops,
            change=lambda s, i=i: replace(s, layers=s.layers[: i + 1]),  # type: ignore[misc]
            weights=lambda w: [w.pop(k, None) for k in ("norm", "norm_bias")] and None,
        )
        for (_, taps), step, kv in zip(tapped, steps(ends), [memory(ends, 2 * BLOCK, 2)] * 3,
                                       strict=True):  # fmt: skip
            every = np.arange(len(step.tokens), dtype=np.int32)
            assert same(taps[i], ends.compute_hidden(step, kv, every))


def test_every_choice_of_layers_gives_the_same() -> None:
    model = decoder(MODELS / "llama3", make("cpu"))
    every = run(model, range(len(model.spec.layers)))
    (plain, _), (prompt, _) = run(model, None)[-1], run(model, [-1])[0]
    for chosen in ([0], [-1], (-1,), [len(model.spec.layers) - 1], [1, 0]):
        found = run(model, chosen)
        for (hidden, taps), (expected, known) in zip(found, every, strict=True):
            assert same(hidden, expected) and set(taps) == set(chosen)
            assert all(same(taps[tap], known[tap]) for tap in chosen if tap >= 0)
        if -1 in chosen:
            assert same(found[-1][1][-1], plain) and same(found[0][0], prompt)


def test_layers_whose_residual_is_normed_are_refused() -> None:
    model = decoder(MODELS / "opt-350m", make("reference"))
    (hidden, _), *_ = run(model, [-1])
    (expected, _), *_ = run(model, None)
    assert same(hidden, expected)
    with pytest.raises(ConfigError, match="only its final hidden state"):
        run(model, [0])
