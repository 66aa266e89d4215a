"""A stack in one native call next to the same layers in the finer ops: the same bits, for every
family, in every mix of chunks; and what each family's layers are run by.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from harness import MODELS, batch, decoded, decoder, logits, logits_of, memory, mixed
from random_models import random_model

from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.cpu.stack import CpuStack
from flyweight.ops.operands import KVLayer
from flyweight.ops.stack import Layer, SteppedStack
from flyweight.spec import KV_TYPES
from flyweight.wire import F32

FAMILIES = sorted(p.name for p in MODELS.iterdir() if p.is_dir())
FINER = {  # what has no recipe: mixtures, latent attention, parallel layers, post-norm
    "cohere", "cohere-plus", "cohere2", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3",
    "gpt-neox", "gpt-oss", "gpt-oss-mxfp4", "kimi-k2", "llama4-scout", "mixtral", "opt-350m",
    "qwen2-moe", "qwen3-moe", "stablelm-heads", "stablelm-parallel",
}  # fmt: skip
RUNS = {  # every second layer is a mixture, or has queries with factors and is one
    "qwen3-moe-step": [True, False, True],
    "llama4": [True, False, True, False],
}
TOKENS, FEWER = 70, 37  # of a prompt; the fewer with slow kernels


class FinerOps(CpuOps):
    """The native ops without their stack."""

    def stack(self, layers: Sequence[Layer]) -> SteppedStack:  # type: ignore[override]
        return SteppedStack(layers)


def everything(model: Decoder, count: int) -> list[F32]:
    """Logits of decodes, and of one batch that has everything in it."""
    tokens = np.random.default_rng(5).integers(0, model.spec.vocab, count).astype(np.int32)
    return [decoded(model, tokens, count - 10), mixed(model, tokens, np.arange(4, count))[0]]


def equal(a: Decoder, b: Decoder, count: int = TOKENS) -> None:
    for ours, theirs in zip(everything(a, count), everything(b, count), strict=True):
        assert np.isfinite(ours).all()
        assert np.array_equal(ours.view(np.int32), theirs.view(np.int32))


def in_one_call(model: Decoder) -> list[bool]:
    """For each run of layers, whether one native call computes it."""
    assert isinstance(model.stack, CpuStack)
    return [native is not None for _, native in model.stack.runs]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str) -> None:
    stack, finer = (decoder(MODELS / name, make(2, None, "bf16")) for make in (CpuOps, FinerOps))
    equal(stack, finer)
    assert in_one_call(stack) == RUNS.get(name, [name not in FINER])


# One thread walks the same chunks in order: with the slowest kernels only in .ci/full.
THREADS_OF = [
    pytest.param(threads, isa, marks=[pytest.mark.long] if (threads, isa) == (1, "scalar") else [])
    for threads in (1, 3)
    for isa in available_isas()
]


@pytest.mark.parametrize(("threads", "isa"), THREADS_OF)
@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("kind", ["q4_0", "q4_k", "bf16"])
def test_every_way_to_multiply(
    kind: str, activations: str, threads: int, isa: str, at_length: bool
) -> None:
    backends = [make(threads, isa, activations) for make in (CpuOps, FinerOps)]
    stack, finer = (random_model(ops, kind) for ops in backends)
    assert in_one_call(stack) == [True]
    equal(stack, finer, TOKENS if at_length or isa != "scalar" else FEWER)


@pytest.mark.parametrize("kv", [kind.name for kind in KV_TYPES.values()])
@pytest.mark.parametrize("chunk", [33, 61])  # the longer use products while in cache
def test_every_type_of_k_and_v(kv: str, chunk: int) -> None:
    stack, finer = (random_model(make(2, None, "int8"), "q4_0") for make in (CpuOps, FinerOps))
    tokens = np.random.default_rng(5).integers(0, stack.spec.vocab, TOKENS).astype(np.int32)
    ours, theirs = (logits(model, tokens, np.arange(TOKENS), kv, chunk) for model in (stack, finer))
    assert np.isfinite(ours).all() and np.array_equal(ours.view(np.int32), theirs.view(np.int32))


class Unknown:
    """A layer whose recipe nobody gives."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.attn_norm, self.rope = layer, layer.attn_norm, layer.rope

    def __call__(self, *args: object) -> F32:
        return self.layer(*args)  # type: ignore[arg-type]

    def recipe(self) -> None:
        return None


@pytest.mark.parametrize("name", ["gemma3", "opt", "olmo2", "qwen3"])
@pytest.mark.parametrize("unknown", [0, 1])
def test_runs_around_an_unknown_layer(name: str, unknown: int) -> None:
    ops = FinerOps(2, None, "f32")
    model = decoder(MODELS / name, ops)
    tokens = np.arange(9, dtype=np.int32) % model.spec.vocab
    expected = decoded(model, tokens, 4)
    assert isinstance(model.stack, SteppedStack)
    layers = list(model.stack.layers)
    layers[unknown] = Unknown(layers[unknown])
    model.stack = CpuOps.stack(ops, layers)
    runs = [True] * (unknown > 0) + [False] + [True] * (unknown + 1 < len(layers))
    assert in_one_call(model) == runs
    assert np.array_equal(decoded(model, tokens, 4), expected)


def test_a_step_of_no_tokens() -> None:
    model = decoder(MODELS / "qwen3", CpuOps(2))
    kv: list[KVLayer] = memory(model, 16)
    nothing = np.zeros(0, np.int32)
    step = batch([(nothing, 0)], 16, nothing)
    assert logits_of(model, step, kv).shape == (0, model.spec.vocab)


def test_kv_in_a_list_is_looked_up_every_time() -> None:
    model = decoder(MODELS / "qwen3", CpuOps(1))
    tokens, last = np.arange(9, dtype=np.int32), np.zeros(1)
    step = batch([(tokens[8:], 8)], 16, last)
    held: list[KVLayer] = memory(model, 16)
    logits_of(model, batch([(tokens[:8], 0)], 16, np.zeros(0)), held)
    known = logits_of(model, step, held)
    expected = logits_of(model, step, tuple(memory(model, 16)))
    held[:] = memory(model, 16)  # nobody wrote to it
    found = logits_of(model, step, held)
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, known)


WRONG = {
    "slot": {"slots": np.array([10**6], np.int32)},
    "negative": {"positions": np.array([-1], np.int32)},
    "block": {"tables": np.full((1, 1), 99, np.int32)},
    "one slot": {"slots": np.zeros(2, np.int32)},
    "starts": {"starts": np.array([0, 2], np.int32)},
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_what_would_reach_past_memory_is_refused(what: str) -> None:
    model = decoder(MODELS / "qwen3", CpuOps(1))
    step = batch([(np.array([1]), 0)], 16, np.zeros(1, np.int32))
    rotation = [model.ops.rotation(step.positions, *rope) for rope in model.ropes]
    residual = np.zeros((1, model.spec.hidden), np.float32)
    with pytest.raises(ValueError, match=what):
        model.stack(residual, memory(model, 16), replace(step, **WRONG[what]), rotation)


def test_every_layer_has_memory_of_its_own_size() -> None:
    model = decoder(MODELS / "qwen3", CpuOps(1))
    step = batch([(np.array([1]), 40)], 64, np.zeros(1))
    short = [*memory(model, 64)[:-1], memory(model, 16)[-1]]
    logits_of(model, step, memory(model, 64))
    with pytest.raises(ValueError, match="outside the KV memory"):
        logits_of(model, step, short)


def test_memory_of_another_shape_is_refused() -> None:
    model, other = (decoder(MODELS / name, CpuOps(1)) for name in ("qwen3", "gemma3"))
    step = batch([(np.array([1]), 0)], 16, np.zeros(1, np.int32))
    rotation = [model.ops.rotation(step.positions, *rope) for rope in model.ropes]
    kv = memory(model, 16)
    residual = np.zeros((1, model.spec.hidden), np.float32)
    with pytest.raises(ValueError, match="one K/V memory a layer"):
        model.stack(residual, kv[1:], step, rotation)
    with pytest.raises(ValueError, match="its layer's shape"):
        model.stack(residual, memory(other, 16)[: len(kv)], step, rotation)
    with pytest.raises(ValueError, match="rotation"):
        model.stack(residual, kv, step, [])
    with pytest.raises(ValueError, match="rows of the layers"):
        model.stack(residual[:, 1:].copy(), kv, step, rotation)


def test_a_tap_has_a_layer_and_the_shape_of_the_residual() -> None:
    model = decoder(MODELS / "qwen3", CpuOps(1))
    step = batch([(np.array([1]), 0)], 16, np.zeros(1, np.int32))
    rotation = [model.ops.rotation(step.positions, *rope) for rope in model.ropes]
    residual, kv = np.zeros((1, model.spec.hidden), np.float32), memory(model, 16)
    assert isinstance(model.stack, CpuStack)
    ((_, native),) = model.stack.runs
    assert native is not None
    (held,) = model.stack._list_memories(tuple(kv))
    assert held is not None
    for tap in ((len(kv), residual.copy()), (0, np.zeros((2, model.spec.hidden), np.float32))):
        with pytest.raises(ValueError, match="tap"):
            model.stack._run_native(native, None, residual, held, step, rotation, dict([tap]))
