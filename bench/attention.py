"""Speed of native attention: decode in GB/s of K/V next to sampled bandwidth, prefill in GFLOP/s.

    python bench/attention.py [--threads 2] [--dtype bf16] [--activations int8] [--isa avx512]
        [--heads 16,8,128] [--window 512] [--latent] [--only decode]

Times are the best of several calls over layers that together exceed the caches.  "shared" is how
many leading positions all sequences have in the same blocks: bytes count those once.  `cpu` figures
divide by processor time instead of wall time, which is fairer to one thread on a busy machine.
Causal prefill counts the positions a row sees; with --window no more than those.  --latent has one
row of 576 elements a token, V the last 512 of them; --heads then gives the query heads.
"""

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flyweight import _native
from flyweight.ops.cpu.attention import Attention, CpuKV, make_kv_layer
from flyweight.spec import KV_BLOCK, KV_TYPES, KVGroup
from flyweight.wire import Batch

BLOCK = 32
LAYERS = 28
CASES = {  # sequences, computed, count, shared
    "decode": [(1, 2047, 1, 0), (1, 8191, 1, 0), (16, 511, 1, 0), (8, 1024, 4, 0)],
    "prefill": [(1, 0, 512, 0), (1, 0, 2048, 0), (1, 1536, 512, 0)],
    "shared": [(16, 3100, 1, 0), (16, 3100, 1, 3008)],
}


def bandwidth(threads: int) -> np.ndarray:
    """GB/s of `threads` readers over 128 MiB each, best of three: by the clock, and of one thread
    by processor time.
    """
    arrays = [np.zeros(1 << 24, np.int64) for _ in range(threads)]
    for a in arrays:
        a[:] = 1
    best = np.zeros(2)
    for _ in range(3):
        readers = [threading.Thread(target=a.max) for a in arrays]
        start, worked = time.perf_counter(), time.process_time()
        for r in readers:
            r.start()
        for r in readers:
            r.join()
        spent = time.perf_counter() - start, time.process_time() - worked
        best = np.maximum(best, threads * arrays[0].nbytes / np.array(spent) / 1e9)
    return best


def step(sequences: int, computed: int, count: int, shared: int = 0) -> Batch:
    """Each sequence computes `count` tokens after `computed` ones; blocks in shuffled order."""
    per = -(-(computed + count) // BLOCK)
    blocks = np.random.default_rng(0).permutation(sequences * per).astype(np.int32)
    tables = blocks.reshape(sequences, per)
    tables[:, : shared // BLOCK] = tables[0, : shared // BLOCK]
    positions = np.tile(np.arange(computed, computed + count, dtype=np.int32), sequences)
    owner = np.repeat(np.arange(sequences), count)
    slots = tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    contexts = np.full(sequences, computed + count, np.int32)
    starts = np.arange(sequences + 1, dtype=np.int32) * count
    none = np.empty(0, np.int32)
    return Batch(none, positions, slots, starts, contexts, tables, none, None)  # type: ignore[arg-type]


def filled(group: KVGroup, blocks: int, dtype: str, activations: str) -> CpuKV:
    kv = make_kv_layer(group, blocks, BLOCK, dtype, activations)
    if KV_TYPES[dtype].coded:
        return fill_codes(kv)
    noise = np.random.default_rng(1).normal(size=1 << 16)
    word = {"f32": noise.astype(np.float32), "f16": noise.astype(np.float16)}
    word["bf16"] = (word["f32"].view(np.uint32) >> 16).astype(np.uint16)
    for raw in (kv.k,) if kv.v is None else (kv.k, kv.v):
        values = raw.view(word[dtype].dtype)
        values[:] = np.resize(word[dtype], values.size)
    return kv


def fill_codes(kv: CpuKV) -> CpuKV:
    """Random codes; every part of 16 positions ends in their scales."""
    noise = np.random.default_rng(1).integers(0, 256, 1 << 16, np.uint8)
    both = KV_TYPES[kv.dtype].count_bytes(kv.group)
    of_k = KV_TYPES[kv.dtype].count_bytes(replace(kv.group, v_in_k=True))
    for raw, each in ((kv.k, of_k), (kv.v, both - of_k)):
        if raw is None:
            continue
        held = raw[: raw.size - _native.KV_SPARE]
        held[:] = np.resize(noise, held.size)
        parts = held.reshape(-1, each // kv.group.heads * KV_BLOCK)
        parts[:, -4 * KV_BLOCK :] = np.full(KV_BLOCK, 0.01, np.float32).view(np.uint8)
    return kv


def best(run: Callable[[int], object], layers: int, repeats: int) -> tuple[float, float]:
    """Least wall and processor seconds of one call."""
    run(0)
    wall = cpu = float("inf")
    for _ in range(repeats):
        w, c = time.perf_counter(), time.process_time()
        for layer in range(layers):
            run(layer)
        wall = min(wall, (time.perf_counter() - w) / layers)
        cpu = min(cpu, (time.process_time() - c) / layers)
    return wall, cpu


def report(
    args: argparse.Namespace, sequences: int, computed: int, count: int, shared: int
) -> None:
    heads, kv_heads, dim = args.heads
    pool = _native.Pool(args.threads, args.isa)
    ops, batch = Attention(pool), step(sequences, computed, count, shared)
    group = KVGroup(kv_heads, dim, dim)
    if args.latent:
        group = KVGroup(1, 576, 512, v_in_k=True)
    held = LAYERS if count < 64 and sequences == 1 else 4
    mode, blocks = args.activations, int(batch.tables.max()) + 1
    layers = [filled(group, blocks, args.dtype, mode) for _ in range(held)]
    q = np.random.default_rng(2).normal(size=(sequences * count, heads, group.k_dim))
    q = q.astype(np.float32)
    before = bandwidth(args.threads)
    wall, cpu = best(
        lambda i: ops.attend(q, layers[i], batch, dim**-0.5, args.window), held, args.repeats
    )
    bracket = (before + bandwidth(args.threads)) / 2
    window = args.window or computed + count
    seen = sequences * sum(min(computed + i + 1, window) for i in range(count))
    flops = 2 * seen * heads * (group.k_dim + group.v_dim)
    own = min(computed + count, window + count - 1)
    stored = sequences * own - (sequences - 1) * shared
    nbytes = stored * KV_TYPES[args.dtype].count_bytes(group)
    name = f"{sequences} x {count} after {computed}" + (f", {shared} shared" if shared else "")
    rate, speed = nbytes / wall / 1e9, flops / wall / 1e9
    print(
        f"{name:28} {wall * 1e6:9.0f} us  {rate:6.1f} GB/s = {rate / bracket[0] * 100:4.0f} % of "
        f"{bracket[0]:5.1f}  {speed:7.1f} GFLOP/s  "
        f"cpu: {nbytes / cpu / 1e9:6.1f} GB/s = {nbytes / cpu / 1e7 / bracket[1]:4.0f} % of "
        f"{bracket[1]:5.1f}  {flops / cpu / 1e9:7.1f} GFLOP/s a thread"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", choices=list(CASES))
    parser.add_argument("--dtype", default="bf16", choices=list(KV_TYPES))
    parser.add_argument("--activations", default="int8", choices=["int8", "bf16", "f32"])
    parser.add_argument("--isa", default="", help="instruction set, the best by default")
    parser.add_argument("--heads", default="16,8,128", help="query heads, KV heads, head size")
    parser.add_argument("--window", type=int, default=0, help="positions a token sees, 0 for all")
    parser.add_argument("--latent", action="store_true", help="V inside K, as in DeepSeek-V2")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    args.heads = tuple(int(n) for n in args.heads.split(","))
    pool = _native.Pool(1, args.isa)
    print(
        f"isa {pool.isa}, {args.threads} threads, KV {args.dtype}, heads {args.heads}, "
        f"window {args.window}, latent {args.latent}"
    )
    for kind, cases in CASES.items():
        for case in cases if args.only in ("", kind) else ():
            report(args, *case)


if __name__ == "__main__":
    main()
