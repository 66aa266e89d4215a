"""Random models of any shape and weight kind, packed without a file, and engines around them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import Metrics
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import kv_memory
from flyweight.models.decoder import Decoder, Solo
from flyweight.models.registry import FAMILIES
from flyweight.ops.base import Ops, bf16_bits
from flyweight.ops.grouped import GroupedWeight
from flyweight.types import Request, SamplingParams, TokenLogprobs

# Nothing divides evenly: heads, inner and vocabulary end inside a tile of 16 rows.
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 331,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}


def random_weight(
    rng: np.random.Generator, kind: str, n: int, k: int
) -> GroupedWeight | np.ndarray:
    """[n, k] canonical weights of about unit gain."""
    x = (rng.standard_normal((n, k)) * 2 / np.sqrt(k)).astype(np.float32)
    if kind == "f32":
        return x
    if kind == "f16":
        return x.astype(np.float16)
    if kind == "bf16":
        return bf16_bits(x)
    if kind == "q8_0":
        codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
        return GroupedWeight((n, k), 8, 32, codes, _scales(rng, n, k // 32, 60 * np.sqrt(k)))
    if kind == "q4_0":
        codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
        return GroupedWeight((n, k), 4, 32, codes, _scales(rng, n, k // 32, 4 * np.sqrt(k)), zero=8)
    assert kind == "q4_k", kind
    return GroupedWeight(
        (n, k),
        4,
        32,
        rng.integers(0, 16, (n, k)).astype(np.uint8),
        rng.integers(20, 64, (n, k // 32)).astype(np.uint8),
        super_group=256,
        super_scales=_scales(rng, n, k // 256, 160 * np.sqrt(k)),
        mins=rng.integers(20, 64, (n, k // 32)).astype(np.uint8),
        super_mins=_scales(rng, n, k // 256, 22 * np.sqrt(k)),
    )


def _scales(rng: np.random.Generator, n: int, groups: int, divisor: float) -> np.ndarray:
    return (rng.uniform(0.5, 2, (n, groups)) / divisor).astype(np.float16)


def random_model(ops: Ops, kind: str, seed: int = 0) -> Decoder:
    rng = np.random.default_rng(seed)
    family = FAMILIES[str(CONFIG["model_type"])]
    spec = family.spec(CONFIG)
    weights: dict[str, object] = {}
    for slot in family.plan(spec).slots:
        if slot.kind == "vector":
            weights[slot.name] = rng.uniform(0.5, 1.5, slot.shape).astype(np.float32)
        else:
            n, k = slot.shape
            weights[slot.name] = ops.pack((n, k), [random_weight(rng, kind, n, k)])
    return Decoder(spec, weights, ops, Solo())


def engine(model: Decoder, kv: str = "f16", **limits: object) -> Engine:
    chosen = {
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 16,
        "blocks": 200,
    }
    bounds = Limits(**{**chosen, **limits})  # type: ignore[arg-type]
    layers = kv_memory(model.spec, model.ops, bounds, kv)
    scheduler = Scheduler(bounds, BlockPool(bounds.blocks, bounds.block_size))
    return Engine(scheduler, Runner(model, model.ops, layers), None, Metrics())


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


def request(id: str, tokens: Sequence[int], count: int, **params: object) -> Request:
    options = SamplingParams(max_tokens=count, logprobs=3, ignore_eos=True, **params)  # type: ignore[arg-type]
    seed = options.seed or 0
    return Request(
        id, tuple(tokens), options, max_tokens=count, seed=seed, arrival=time.monotonic()
    )


def answers(engine: Engine, requests: Sequence[Request]) -> dict[tuple[str, int], Answer]:
    """Runs all to the end; answers by (request, choice)."""
    for r in requests:
        engine.add(r)
    got: dict[tuple[str, int], Answer] = {}
    while engine.busy:
        for event in engine.step():
            old = got.get((event.id, event.index), Answer((), ()))
            got[event.id, event.index] = Answer(
                old.tokens + event.tokens, old.logprobs + event.logprobs
            )
    return got
