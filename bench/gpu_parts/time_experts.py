"""Speed of a mixture of experts on a GPU: one layer, replayed from a CUDA graph.

    python bench/gpu_parts/time_experts.py --help

The default shape is Qwen3-30B-A3B's.  `us` is for routing and the experts together, a step; every
step of a graph routes anew, so that the caches hold little of the weights.  GB/s counts the bytes
of the distinct experts chosen; TFLOP/s the products of the pairs.  The last column has the
kernels of a step by themselves, both products together.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from flyweight.ops.cuda import CudaOps
from flyweight.ops.cuda.weights import CudaWeight, allocate
from flyweight.spec import RouteSpec

STEPS = 8  # routings of a graph


def make_weight(shape: tuple[int, int], kind: str) -> CudaWeight:
    w = allocate(shape, kind, torch.device("cuda"))
    if w.form is None:
        w.data.normal_(0, 0.02)
        return w
    w.data.random_(0, 127)
    for scales in (w.scales, w.lows, w.supers, w.super_lows, w.row_scales):
        if scales is not None:
            scales.fill_(1 if scales.dtype in (torch.uint8, torch.int8) else 0.005)
    return w


def time_graph(call: Callable[[], Any]) -> float:
    """Seconds of a replay, the median of 9."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(10):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(begun.elapsed_time(ended) / 1e3)
    return statistics.median(times[1:])


def list_kernels(call: Callable[[], Any]) -> str:
    """Microseconds of each kernel, by name, in one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found.setdefault(event.name, []).append(event.device_time)
    return ", ".join(f"{name[:24]} {sum(times) / STEPS:.1f}" for name, times in found.items())


def measure(
    ops: CudaOps, mixture: tuple[list[Any], list[Any]], spec: RouteSpec, tokens: int
) -> str:
    up, down = mixture
    hidden, inner = up[0].shape[1], down[0].shape[1]
    x = torch.randn(tokens, hidden, device="cuda").to(ops.dtype)
    logits = [torch.randn(tokens, spec.experts, device="cuda") for _ in range(STEPS)]

    def call() -> None:
        for one in logits:
            ids, weights = ops.route(one, spec)
            ops.experts(x, ids, weights, up, down, "silu")

    distinct = sum(len(ops.route(one, spec)[0].unique()) for one in logits) / STEPS
    seconds = time_graph(call) / STEPS
    size = up[0].nbytes + down[0].nbytes
    flops = tokens * spec.top * 6 * hidden * inner
    return (
        f"{tokens:6} {seconds * 1e6:9.1f} {distinct:8.1f} {distinct * size / seconds / 1e9:8.0f} "
        f"{flops / seconds / 1e12:8.1f}   {list_kernels(call)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default="bf16,q4_0")
    parser.add_argument("--tokens", default="1,8,64,512,2048")
    parser.add_argument("--shape", default="2048,768")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top", type=int, default=8)
    args = parser.parse_args()
    ops, spec = CudaOps(), RouteSpec(args.experts, args.top, normalise=True)
    hidden, inner = map(int, args.shape.split(","))
    print(torch.cuda.get_device_name())
    for kind in args.kinds.split(","):
        up = [make_weight((2 * inner, hidden), kind) for _ in range(args.experts)]
        down = [make_weight((hidden, inner), kind) for _ in range(args.experts)]
        print(f"{kind}\ntokens        us  experts     GB/s  TFLOP/s   us of a step by kernel")
        for tokens in map(int, args.tokens.split(",")):
            print(measure(ops, (up, down), spec, tokens), flush=True)


if __name__ == "__main__":
    main()
