"""Speed of a mixture of experts: tokens/s and GB/s of one layer, and of the same in finer ops.

    python bench/experts.py [--threads 2] [--isa avx512] [--kinds q4_0,q8_0] [--tokens 1,8,128]
                            [--shape 2048,768] [--experts 128] [--top 8]

The default shape is Qwen3-30B-A3B's. Every call routes anew and `bw` is the pool's own read
bandwidth, sampled just before and after; weights read are those of the distinct experts chosen.
`finer` computes expert by expert with `linear` and `act`, as the op was before it had a kernel.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from linear import Limits, random_weight, timed

from flyweight import _native
from flyweight.ops.cpu import CpuOps
from flyweight.ops.operands import Weights
from flyweight.spec import RouteSpec
from flyweight.wire import F32, I32

Mixture = tuple[list[Weights], list[Weights]]


def finer(ops: CpuOps, x: F32, ids: I32, weights: F32, mixture: Mixture) -> F32:
    out = np.zeros(x.shape, np.float32)
    for j in range(ids.shape[1]):
        for e in np.unique(ids[:, j]):
            rows = np.flatnonzero(ids[:, j] == e)
            inner = ops.act(ops.linear(np.ascontiguousarray(x[rows]), mixture[0][e]), "silu")
            out[rows] += weights[rows, j, None] * ops.linear(inner, mixture[1][e])
    return out


def mixture_of(ops: CpuOps, kind: str, experts: int, hidden: int, inner: int) -> Mixture:
    up, down = random_weight(kind, 2 * inner, hidden), random_weight(kind, hidden, inner)
    start = time.perf_counter()
    made = (
        [ops.pack((2 * inner, hidden), [up]) for _ in range(experts)],
        [ops.pack((hidden, inner), [down]) for _ in range(experts)],
    )
    size = sum(w.nbytes for some in made for w in some)
    took = time.perf_counter() - start
    print(f"{kind}: {2 * experts} matrices of {size / 1e6:.0f} MB packed in {took:.2f} s")
    return list(made[0]), list(made[1])


def line(ops: CpuOps, limits: Limits, mixture: Mixture, spec: RouteSpec, tokens: int) -> None:
    hidden = mixture[0][0].shape[1]
    rng = np.random.default_rng(tokens)
    steps = [rng.standard_normal((tokens, spec.experts), np.float32) for _ in range(8)]
    x = rng.standard_normal((tokens, hidden), np.float32)
    routed = [ops.route(logits, spec) for logits in steps]
    size = mixture[0][0].nbytes + mixture[1][0].nbytes
    read = sum(len(np.unique(ids)) for ids, _ in routed) * size / len(steps)

    def every(call: Callable[[I32, F32], object]) -> float:
        return timed(lambda: [call(*r) for r in routed], limits.clock) / len(steps)

    before = limits.bandwidth()
    route = timed(lambda: [ops.route(a, spec) for a in steps], limits.clock) / len(steps)
    seconds = every(lambda i, w: ops.experts(x, i, w, *mixture, "silu"))
    bandwidth = (before + limits.bandwidth()) / 2
    apart = every(lambda i, w: finer(ops, x, i, w, mixture))
    rate = read / seconds / 1e9
    print(
        f"{tokens:6} {route * 1e6:9.1f} {seconds * 1e6:9.1f} {tokens / seconds:9.0f} {rate:7.1f} "
        f"{rate / bandwidth:6.0%} {apart * 1e6:9.1f} {apart / seconds:6.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa")
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--kinds", default="q4_0,q8_0")
    parser.add_argument("--tokens", default="1,8,128")
    parser.add_argument("--shape", default="2048,768")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top", type=int, default=8)
    args = parser.parse_args()
    ops = CpuOps(args.threads, args.isa, args.activations)
    limits = Limits(_native.Pool(args.threads, args.isa or ""), time.perf_counter)
    spec = RouteSpec(args.experts, args.top, normalise=True)
    hidden, inner = map(int, args.shape.split(","))
    for kind in args.kinds.split(","):
        mixture = mixture_of(ops, kind, args.experts, hidden, inner)
        print("tokens  route us        us  tokens/s    GB/s  of bw  finer us  times")
        for tokens in map(int, args.tokens.split(",")):
            line(ops, limits, mixture, spec, tokens)


if __name__ == "__main__":
    main()
