"""Speed of `linear`: GB/s of weights and Gop/s per kind, shape and row count, as shares of limits.

    python bench/linear.py [--threads 2] [--isa avx512] [--kinds q4_0,q8_0] [--rows 1,16]
                           [--decode] [--cpu]

Every figure is the median of several calls over copies of the weight that together exceed the
caches.  `bw` and `peak` are the pool's own read bandwidth and int8 (or float32) rate, sampled just
before and after; on a shared machine only the shares mean anything.  --decode times one token's
products of Qwen3-0.6B's shape: the most tok/s that `linear` allows.  --cpu divides by processor
time instead of wall time: with one thread, the way to measure next to busy neighbours.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from flyweight import _native
from flyweight.ops.base import Array, choose_rounding
from flyweight.ops.cpu.gemm import MODES, Gemm, PackedWeight
from flyweight.ops.grouped import LAYOUTS, GroupedWeight

SHAPES = ((4096, 1024), (6144, 1024), (1024, 3072))
FOOTPRINT = 256 << 20  # bytes of weights walked by one timing of few rows
# Qwen3-0.6B: 28 layers of q,k,v | o | gate,up | down, and the head
LAYERS, LAYER, HEAD = 28, ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)), (151936, 1024)


def random_weight(kind: str, n: int, k: int) -> GroupedWeight | Array:
    rng = np.random.default_rng(n + k)
    if kind not in LAYOUTS:
        w = rng.standard_normal((n, k), np.float32)
        return {
            "f32": w,
            "f16": w.astype(np.float16),
            "bf16": (w.view(np.uint32) >> 16).astype(np.uint16),
        }[kind]
    layout = LAYOUTS[kind]
    cells = rng.integers(0, 1 << layout.bits, (n, k), np.uint8).view(layout.codes)

    def numbers(dtype: str, per: int) -> Array | None:
        if not dtype:
            return None
        if dtype.startswith("float"):
            return np.full((n, k // per), 0.01, dtype)
        least = 1 if layout.super_group else 118  # exponents of 2^(x - 128)
        most = 15 if layout.bits == 2 else 127
        return rng.integers(least, max(most, least + 1), (n, k // per), np.uint8).view(dtype)

    supers = numbers(layout.super_scales, layout.super_group)
    mins = numbers(layout.mins, layout.group)
    return GroupedWeight(
        (n, k),
        layout.bits,
        layout.group,
        cells,
        numbers(layout.scales, layout.group),
        layout.zero,
        layout.super_group,
        supers,
        mins,
        supers if layout.mins else None,
        layout.values,
    )


Clock = Callable[[], float]


def timed(call: Callable[[], object], clock: Clock, repeats: int = 5) -> float:
    """Median seconds."""
    times = []
    for _ in range(repeats):
        start = clock()
        call()
        times.append(clock() - start)
    return statistics.median(times)


class Limits:
    """Bandwidth and peaks of one pool, from samples taken on demand."""

    def __init__(self, pool: _native.Pool, clock: Clock) -> None:
        self.pool, self.clock = pool, clock
        self.memory = _native.Tiles(_native.Arena(), "f32", 65536, 1024)  # 256 MiB
        flat = np.ones((1024, 1024), np.float32).reshape(-1).view(np.uint8)
        for row in range(0, 65536, 1024):  # untouched pages would all be one page of zeros
            _native.pack_rows(pool, self.memory, row, 1024, flat)

    def bandwidth(self) -> float:
        return self._rate(lambda: _native.probe_read(self.pool, self.memory))

    def peak(self, integer: bool) -> float:
        probe = _native.probe_dot if integer else _native.probe_fma
        return self._rate(lambda: probe(self.pool, 100_000))

    def _rate(self, probe: Callable[[], int]) -> float:
        """Median of three, in 1e9 a second."""
        rates = []
        for _ in range(3):
            start = self.clock()
            rates.append(probe() / (self.clock() - start) / 1e9)
        return statistics.median(rates)


def table(gemm: Gemm, limits: Limits, kinds: list[str], rows: list[int], activations: str) -> None:
    print("kind   act   N x K        rows       us    GB/s  of bw     Gop/s  of peak")
    for kind in kinds:
        integer = choose_rounding(activations, kind) == "int8"
        for n, k in SHAPES:
            part = random_weight(kind, n, k)
            size = gemm.count_packed_bytes((n, k), kind)
            copies = [gemm.pack((n, k), [part]) for _ in range(max(2, FOOTPRINT // size))]
            for t in rows:
                line(gemm, limits, copies[: 4 if t > 16 else len(copies)], t, integer)


def line(gemm: Gemm, limits: Limits, copies: list[PackedWeight], t: int, integer: bool) -> None:
    (n, k), kind = copies[0].shape, copies[0].kind
    x = np.random.default_rng(t).standard_normal((t, k), np.float32)
    before = limits.bandwidth(), limits.peak(integer)
    seconds = timed(lambda: [gemm.linear(x, w) for w in copies], limits.clock) / len(copies)
    bandwidth, peak = (
        statistics.mean(pair)
        for pair in zip(before, (limits.bandwidth(), limits.peak(integer)), strict=True)
    )
    read, done = copies[0].nbytes / seconds / 1e9, 2 * n * k * t / seconds / 1e9
    act = "int8" if integer else "float"
    print(
        f"{kind:6} {act:5} {n:6} x {k:<5} {t:4} {seconds * 1e6:9.1f} {read:7.1f} "
        f"{read / bandwidth:6.0%} {done:9.1f} {done / peak:7.0%}"
    )


def decode(gemm: Gemm, limits: Limits, kind: str) -> None:
    """All products of one token, each weight its own memory."""
    parts = {shape: random_weight(kind, *shape) for shape in LAYER}
    weights = [gemm.pack(shape, [parts[shape]]) for _ in range(LAYERS) for shape in LAYER]
    head = random_weight(kind, HEAD[0] // 8, HEAD[1])
    weights.append(gemm.pack(HEAD, [head] * 8))
    xs = {
        k: np.random.default_rng(k).standard_normal((1, k), np.float32) for k in (1024, 2048, 3072)
    }
    size = sum(w.nbytes for w in weights)
    before = limits.bandwidth()
    seconds = timed(lambda: [gemm.linear(xs[w.shape[1]], w) for w in weights], limits.clock, 9)
    bandwidth = (before + limits.bandwidth()) / 2
    read = size / seconds / 1e9
    print(
        f"{kind}: {size / 1e6:.0f} MB, {seconds * 1e3:.2f} ms a token = {1 / seconds:.1f} tok/s, "
        f"{read:.1f} GB/s = {read / bandwidth:.0%} of {bandwidth:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="")
    parser.add_argument("--activations", default="int8", choices=list(MODES))
    parser.add_argument("--kinds", default=",".join((*LAYOUTS, "bf16")))
    parser.add_argument("--rows", default="1,2,4,8,16,64,512")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    pool = _native.Pool(args.threads, args.isa)
    gemm = Gemm(pool, args.activations)
    limits = Limits(pool, time.process_time if args.cpu else time.perf_counter)
    print(
        f"{pool.isa}, {pool.threads} threads, bw {limits.bandwidth():.1f} GB/s, "
        f"int8 {limits.peak(True):.0f} Gop/s"
    )
    kinds = args.kinds.split(",")
    if args.decode:
        for kind in kinds:
            decode(gemm, limits, kind)
    else:
        table(gemm, limits, kinds, [int(t) for t in args.rows.split(",")], args.activations)


if __name__ == "__main__":
    main()
