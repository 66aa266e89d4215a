"""Many requests at once: 256 random prompts of 100 to 1024 tokens and as many tokens of answer, the
workload that nano-vllm publishes; through our engine, and by transformers' continuous batching.
"""

import random
import time
from typing import Any

from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import allocate_kv
from flyweight.ops.cuda import CudaOps
from flyweight.sampling_params import SamplingParams
from flyweight.types import Request
from gpu_parts.measure import BLOCK
from gpu_parts.models import CONFIGS, make_model

LOW, HIGH, IDS = 100, 1024, 10000


def make_workload(count: int, seed: int = 0) -> list[tuple[list[int], int]]:
    """(prompt ids, answer tokens) of each request."""
    rng = random.Random(seed)
    prompts = [[rng.randint(0, IDS) for _ in range(rng.randint(LOW, HIGH))] for _ in range(count)]
    return [(prompt, rng.randint(LOW, HIGH)) for prompt in prompts]


def make_engine(name: str, kind: str, sequences: int, **options: Any) -> Engine:
    """An engine for `sequences` of at most 2048 tokens."""
    ops = CudaOps(**options)
    model = make_model(name, kind, ops, 2 * HIGH + BLOCK)
    blocks = sequences * (2 * HIGH // BLOCK + 1) + 1
    limits = Limits(2 * HIGH + BLOCK, sequences, 16384, BLOCK, blocks, draft_tokens=0)
    layers = allocate_kv(model.spec, ops, limits, ops.kv_dtype)
    scheduler = Scheduler(limits, BlockPool(blocks, BLOCK))
    return Engine(scheduler, Runner(model.decoder, ops, layers), None, EngineMetrics())


def run_engine(engine: Engine, work: list[tuple[list[int], int]], tag: str) -> dict[str, float]:
    """Runs all requests; answer tokens a second, as nano-vllm counts them."""
    params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=HIGH)
    begun, steps, tokens = time.perf_counter(), 0, 0
    for i, (prompt, wanted) in enumerate(work):
        request = Request(f"{tag}{i}", tuple(prompt), params, max_tokens=wanted, seed=i)
        engine.add(request)
    while engine.busy:
        for event in engine.step():
            tokens += len(event.tokens)
        steps += 1
    seconds = time.perf_counter() - begun
    expected = sum(wanted for _, wanted in work)
    assert tokens == expected, f"{tokens} tokens where {expected} were wanted"
    return {"seconds": seconds, "steps": steps, "tokens": tokens, "tokens_per_s": tokens / seconds}


def run_transformers(name: str, work: list[tuple[list[int], int]]) -> dict[str, Any]:
    """The same through `generate_batch`; all answers have the mean length, since one config holds
    for a batch.
    """
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.for_model(**CONFIGS[name])
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    mean = sum(wanted for _, wanted in work) // len(work)
    settings = GenerationConfig(
        max_new_tokens=mean, min_new_tokens=mean, do_sample=True, temperature=0.6, eos_token_id=-1,
        pad_token_id=0,
    )  # fmt: skip
    prompts = [prompt for prompt, _ in work]
    model.eval()
    begun = time.perf_counter()
    outputs = model.generate_batch(inputs=prompts, generation_config=settings, progress_bar=False)
    seconds = time.perf_counter() - begun
    tokens = sum(len(out.generated_tokens) for out in outputs.values())
    return {
        "version": transformers.__version__, "seconds": seconds, "tokens": tokens,
        "tokens_per_s": tokens / seconds, "attention": model.config._attn_implementation,
    }  # fmt: skip
