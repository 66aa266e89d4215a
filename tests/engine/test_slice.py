"""The engine over a real decoder on the reference ops: company, chunks, hits and preemption change
no token.
"""

from dataclasses import replace

import numpy as np
import pytest

from flyweight.config import Limits
from flyweight.draft.ngram import NgramDrafter
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import find_family
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import Files
from flyweight.types import Request, SamplingParams

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
LIMITS = Limits(
    max_model_len=64, max_num_seqs=4, max_num_batched_tokens=16, block_size=4, blocks=64
)


@pytest.fixture(scope="module")
def model():
    ops, kind = ReferenceOps("f32"), find_family(CONFIG)
    spec = kind.read_spec(CONFIG)
    rng = np.random.default_rng(0)
    weights = {}
    for slot in kind.plan(spec, Files()).slots:
        values = rng.normal(0, 0.3, slot.shape).astype(np.float32)
        weights[slot.name] = values if slot.kind == "vector" else ops.pack(slot.shape, [values])
    return Decoder(Parts(ops, SingleProcess(), spec, weights), spec.context), spec, ops


def engine_of(model, limits, drafter=None):
    decoder, spec, ops = model
    pool = BlockPool(limits.blocks, limits.block_size)
    runner = Runner(decoder, ops, allocate_kv(spec, ops, limits, "f32"))
    return Engine(Scheduler(limits, pool), runner, drafter, EngineMetrics())


def drain(engine, requests):
    """Everything the requests produced: (id, index) -> tokens and log-probabilities."""
    for request in requests:
        engine.add(request)
    out = {}
    while engine.busy:
        for event in engine.step():
            tokens, scores = out.setdefault((event.id, event.index), ([], []))
            tokens.extend(event.tokens)
            scores.extend(event.logprobs)
    return out


def requests():
    rng = np.random.default_rng(1)
    shared = rng.integers(0, 40, 13).tolist()
    made = []
    for i in range(6):
        own = rng.integers(0, 40, int(rng.integers(1, 9))).tolist()
        params = SamplingParams(
            n=1 + i % 3, temperature=0.7 * (i % 2), logprobs=2, max_tokens=18, frequency_penalty=0.3
        )
        made.append(Request(f"r{i}", tuple(shared + own), params, max_tokens=18, seed=i))
    return made


def test_company_and_memory_pressure_change_no_token(model):
    alone = {}
    for request in requests():
        alone |= drain(engine_of(model, replace(LIMITS, prefix_caching=False)), [request])
    tight = replace(LIMITS, blocks=14, max_chunk=5)
    for limits, drafter in ((LIMITS, None), (tight, None), (tight, NgramDrafter(3, 1))):
        engine = engine_of(model, limits, drafter)
        assert drain(engine, requests()) == alone
        assert engine.metrics.copied and engine.metrics.cached
        assert bool(engine.metrics.preempted) == (limits is tight)
        assert bool(engine.metrics.proposed) == (drafter is not None)


def test_features_are_counted_where_they_have_an_effect(model) -> None:
    def requested(id: str, length: int) -> Request:
        tokens = tuple(i % 7 for i in range(length))
        return Request(id, tokens, SamplingParams(temperature=0), max_tokens=3)

    engine = engine_of(model, LIMITS)
    drain(engine, [requested("short", 8)])
    assert (engine.metrics.chunked, engine.metrics.shared) == (0, 0)
    drain(engine, [requested("long", 40)])
    assert (engine.metrics.chunked, engine.metrics.shared) == (1, 0)
    drain(engine, [requested("one", 3), requested("two", 3)])
    assert engine.metrics.chunked == 1 and engine.metrics.shared > 0
    assert (engine.metrics.adapted, engine.metrics.constrained) == (0, 0)
    narrow = engine_of(model, replace(LIMITS, max_chunk=4))
    drain(narrow, [requested("short", 8)])
    assert narrow.metrics.chunked == 1
