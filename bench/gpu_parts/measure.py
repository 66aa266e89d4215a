"""Timing on a GPU: steps by the wall clock, the ceilings of the card, decode and prefill steps."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from flyweight.config import Limits
from flyweight.kv.memory import allocate_kv
from flyweight.sampling.arrays import columns
from flyweight.wire import Batch
from gpu_parts.models import RandomModel

BLOCK = 32
GIB = 1 << 30


def time_call(call: Callable[[], Any], least: float = 0.5, most: int = 200) -> float:
    """Median seconds of a call that is done when the device is."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - started < least and len(times) < most):
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure_ceilings() -> dict[str, float]:
    """Bytes a second of a copy (read and written), and bf16 operations a second of a product."""
    source = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() / time_call(lambda: target.copy_(source))
    words = source.view(torch.float32)
    read = source.numel() / time_call(lambda: words.sum())
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b = torch.randn(8192, 8192, device="cuda").bfloat16()
    rate = 2 * 8192**3 / time_call(lambda: a @ b)
    return {"copy_bytes": copy, "read_bytes": read, "bf16_flops": rate}


class Bench:
    """A model with K/V memory for `sequences` of `context` tokens."""

    def __init__(self, model: RandomModel, sequences: int, context: int) -> None:
        self.model, self.sequences, self.context = model, sequences, context
        self.width = -(-context // BLOCK)
        blocks = sequences * self.width + 1
        limits = Limits(context, sequences, max(context, sequences), BLOCK, blocks)
        self.kv = allocate_kv(model.spec, model.ops, limits, model.ops.kv_dtype)
        for layer in self.kv:
            for part in (layer.k, layer.v):
                if part is not None:
                    part.normal_()
        order = np.random.default_rng(0).permutation(sequences * self.width)
        self.tables = order.reshape(sequences, self.width).astype(np.int32)

    def make_batch(self, counts: Sequence[int]) -> Batch:
        """The last `counts` tokens of each sequence's context."""
        positions = [np.arange(self.context - n, self.context) for n in counts]
        where = np.concatenate(positions).astype(np.int32)
        slots = [
            t[p // BLOCK] * BLOCK + p % BLOCK for t, p in zip(self.tables, positions, strict=False)
        ]
        starts = np.cumsum([0, *counts]).astype(np.int32)
        rng = np.random.default_rng(1)
        return Batch(
            tokens=rng.integers(0, self.model.spec.vocab, len(where), np.int32),
            positions=where,
            slots=np.concatenate(slots).astype(np.int32),
            starts=starts,
            contexts=np.full(len(counts), self.context, np.int32),
            tables=self.tables[: len(counts)],
            rows=starts[1:] - 1,
            sampling=make_greedy(len(counts)),
        )

    def step(self, batch: Batch) -> Any:
        """One step as the runner does it."""
        decoder = self.model.decoder
        hidden = decoder.compute_hidden(batch, self.kv, batch.rows)
        return self.model.ops.sample(decoder.compute_logits(hidden), batch.sampling)

    def time_decode(self, sequences: int) -> float:
        batch = self.make_batch([1] * sequences)
        return time_call(lambda: self.step(batch))

    def time_prefill(self, tokens: int) -> float:
        batch = self.make_batch([tokens])
        return time_call(lambda: self.step(batch), most=20)

    def count_decode(self, sequences: int) -> tuple[float, float]:
        """Bytes and operations of a decode step of dense matrices."""
        spec = self.model.spec
        kv = sum(2 * layer.kv.width * 1.0 for layer in spec.layers) * sequences * self.context
        mixing = sum(4.0 * x.heads * x.head for x in spec.layers) * sequences * self.context
        return self.count_matrix_bytes(
            sequences
        ) + kv, self.model.weights * 2.0 * sequences + mixing

    def count_matrix_bytes(self, sequences: int) -> float:
        """Bytes of the matrices that a step reads: of a mixture, the experts that random choices
        of so many tokens touch.
        """
        moe = self.model.spec.layers[0].moe
        if moe is None:
            return float(self.model.matrices)
        share = moe.route.top / moe.route.experts
        touched = 1 - (1 - share) ** sequences
        experts = (self.model.held - self.model.matrices) / (1 / share - 1) if share < 1 else 0
        return self.model.matrices - experts + experts / share * touched

    def count_prefill(self, tokens: int) -> float:
        spec = self.model.spec
        mixing = sum(4.0 * x.heads * x.head for x in spec.layers) * tokens * (tokens + 1) / 2
        head = spec.vocab * spec.hidden
        return 2.0 * (self.model.weights - head) * tokens + 2.0 * head + mixing


def make_greedy(rows: int) -> Any:
    """Sampling columns of greedy rows."""
    batch = columns([])
    zero, one = np.zeros(rows, np.int32), np.ones(rows, np.float32)
    starts = np.zeros(rows + 1, np.int32)
    batch.temperature, batch.top_p, batch.top_k = np.zeros(rows, np.float32), one, zero
    batch.min_p, batch.seed = np.zeros(rows, np.float32), np.zeros(rows, np.uint64)
    batch.choice, batch.position, batch.prompt = zero, zero, zero
    batch.penalties = np.tile(np.array([1, 0, 0], np.float32), (rows, 1))
    batch.given, batch.logprobs = np.full(rows, -1, np.int32), np.full(rows, -1, np.int32)
    for name in ("history", "bias", "allowed", "banned", "repeat"):
        setattr(batch, f"{name}_starts", starts)
    return batch
