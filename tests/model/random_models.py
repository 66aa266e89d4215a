"""Random models of any shape and weight kind, packed without a file, and engines around them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import FAMILIES
from flyweight.ops.base import Ops, to_bf16_bits
from flyweight.ops.grouped import GroupedWeight
from flyweight.spec import Files
from flyweight.types import Request, SamplingParams, TokenLogprobs
from grouped_weights import random_grouped, scaled

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
        return to_bf16_bits(x)
    part = random_grouped(rng, kind, n, k)
    return scaled(part, float(x.std() / part.dequantize().std()))


def random_model(ops: Ops, kind: str, seed: int = 0) -> Decoder:
    rng = np.random.default_rng(seed)
    family = FAMILIES[str(CONFIG["model_type"])]
    spec = family.read_spec(CONFIG)
    weights: dict[str, object] = {}
    for slot in family.plan(spec, Files()).slots:
        if slot.kind == "vector":
            weights[slot.name] = rng.uniform(0.5, 1.5, slot.shape).astype(np.float32)
        else:
            n, k = slot.shape
            weights[slot.name] = ops.pack((n, k), [random_weight(rng, kind, n, k)])
    return Decoder(Parts(ops, SingleProcess(), spec, weights), spec.context)


def engine(
    model: Decoder, kv: str = "f16", adapters: Sequence[str] = (), **limits: object
) -> Engine:
    chosen = {
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 16,
        "blocks": 200,
    }
    bounds = Limits(**{**chosen, **limits})  # type: ignore[arg-type]
    layers = allocate_kv(model.spec, model.ops, bounds, kv)
    scheduler = Scheduler(bounds, BlockPool(bounds.blocks, bounds.block_size))
    return Engine(scheduler, Runner(model, model.ops, layers), None, EngineMetrics(), adapters)


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt: tuple[TokenLogprobs, ...] = ()


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
                old.tokens + event.tokens,
                old.logprobs + event.logprobs,
                old.prompt + event.prompt_logprobs,
            )
    return got
