"""A small random model behind an engine, and everything that requests get of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flyweight.config import Limits
from flyweight.draft.drafter import Drafter, StoringDrafter
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.spec import Files
from flyweight.types import Request, RequestWords, SamplingParams
from flyweight.wire import Batch

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
ROOMY = Limits(
    max_model_len=96, max_num_seqs=4, max_num_batched_tokens=48, block_size=4, blocks=128,
    draft_tokens=3,
)  # fmt: skip
TIGHT = replace(ROOMY, blocks=18, max_chunk=5, max_num_batched_tokens=16)
STOP = 7
# Every option that decides on a token, those that drafters know nothing of included.
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 5, "n": 2},
    {"temperature": 0, "repetition_penalty": 1.2},
    {"temperature": 0.7, "presence_penalty": 0.5, "min_tokens": 12},
    {"temperature": 0.9, "min_p": 0.05},
    {"temperature": 0, "frequency_penalty": 0.3, "repeat_last_n": 6},
    {"temperature": 0.9, "typical_p": 0.8},
    {"temperature": 1.0, "top_n_sigma": 1.5},
    {"temperature": 0.8, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 0.8, "dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_base": 1.5},
    {"temperature": 0, "logit_bias": {3: 1.5, 9: -2.0}},
    {"temperature": 0.9, "allowed_token_ids": tuple(range(0, 40, 2))},
    {"temperature": 0.8, "mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
)


def make_model(ops: Ops, seed: int = 0, spread: float = 0.3) -> Decoder:
    kind, rng = find_family(CONFIG), np.random.default_rng(seed)
    spec = kind.read_spec(CONFIG)
    weights = {}
    for slot in kind.plan(spec, Files()).slots:
        values = rng.normal(0, spread, slot.shape).astype(np.float32)
        weights[slot.name] = values if slot.kind == "vector" else ops.pack(slot.shape, [values])
    return Decoder(Parts(ops, SingleProcess(), spec, weights), spec.context)


def make_prompt_batch(tokens: Sequence[int]) -> Batch:
    """One prompt from its beginning, in the first blocks of 4 slots."""
    count = len(tokens)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.arange(count, dtype=np.int32),
        slots=np.arange(count, dtype=np.int32),
        starts=np.array([0, count], np.int32),
        contexts=np.array([count], np.int32),
        tables=np.arange(-(-count // 4), dtype=np.int32)[None],
        rows=np.array([count - 1], np.int32),
        sampling=None,  # type: ignore[arg-type]
    )


def make_engine(model: Decoder, limits: Limits = ROOMY, drafter: Drafter | None = None) -> Engine:
    pool = BlockPool(limits.blocks, limits.block_size)
    kv = allocate_kv(model.spec, model.ops, limits, "f32")
    draft_kv = drafter.layers if isinstance(drafter, StoringDrafter) else ()
    runner = Runner(model, model.ops, kv, drafter.taps if drafter else (), draft_kv)
    return Engine(Scheduler(limits, pool), runner, drafter, EngineMetrics())


def drain(engine: Engine, requests: Iterable[Request]) -> dict[tuple[str, int], list[int]]:
    """The tokens of every choice of the requests."""
    for request in requests:
        engine.add(request)
    out: dict[tuple[str, int], list[int]] = {}
    while engine.busy:
        for event in engine.step():
            out.setdefault((event.id, event.index), []).extend(event.tokens)
    return out


def make_requests(prompts: Sequence[Sequence[int]], tokens: int = 24) -> list[Request]:
    """Greedy and sampled ones, some of several choices, some with a penalty."""
    made = []
    for i, prompt in enumerate(prompts):
        params = SamplingParams(
            n=1 + (i % 4 == 3),
            temperature=(0.0, 0.7, 0.0, 1.0)[i % 4],
            top_k=(0, 0, 0, 5)[i % 4],
            frequency_penalty=0.3 * (i % 3 == 2),
            max_tokens=tokens,
        )
        made.append(Request(f"r{i}", tuple(prompt), params, max_tokens=tokens, seed=i))
    return made


def make_varied_requests(prompts: Sequence[Sequence[int]], tokens: int = 24) -> list[Request]:
    """With each of OPTIONS in turn; a third of them end at a stop id, a third have banned words."""
    made = []
    for i, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens, **OPTIONS[i % len(OPTIONS)])
        words = RequestWords(bad=((3, 4), (5,)) if i % 3 == 2 else (), breakers=frozenset({6}))
        stop = frozenset({STOP} if i % 3 == 1 else ())
        made.append(Request(f"r{i}", tuple(prompt), params, stop, tokens, words=words, seed=i))
    return made


def make_prompts(count: int, shared: int = 13, vocab: int = 40) -> list[list[int]]:
    """Prompts that begin alike."""
    rng = np.random.default_rng(1)
    head = rng.integers(0, vocab, shared).tolist()
    return [head + rng.integers(0, vocab, int(n)).tolist() for n in rng.integers(1, 9, count)]
