"""Times `linear` of the CUDA backend on a GPU, for the matrices of Llama-3.1-8B and Qwen3-0.6B.

    python bench/gpu_parts/time_linear.py --help

GB/s counts the weight once; the shares are of a measured copy and of a measured cuBLAS product.
Weights are rotated so that none stays in L2.  --sweep tries other tiles and prints the best ones.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from flyweight.ops.cuda import linear as products
from flyweight.ops.cuda.weights import CudaWeight, from_dense, quantise_on_device

SHAPES = {
    "qkv": (6144, 4096), "out": (4096, 4096), "up": (28672, 4096), "down": (4096, 14336),
    "head": (128256, 4096), "q-qkv": (4096, 1024), "q-out": (1024, 2048), "q-up": (6144, 1024),
    "q-down": (1024, 3072),
}  # fmt: skip
KINDS = ("bf16", "q4_0", "u4_g128", "q4_k", "q8_0", "e4m3_rows")
ROWS = (1, 16, 64, 128, 256, 2048)
L2 = 192 << 20  # bytes of weights that take turns, at least
SWEPT = {  # BN, BT, warps, stages
    "few": [(64, 16, 4, 5), (64, 16, 4, 8), (128, 16, 4, 3), (128, 16, 4, 4), (128, 16, 4, 6),
            (128, 16, 8, 3), (128, 16, 8, 4), (128, 16, 8, 6)],
    "some": [(64, 64, 4, 3), (64, 64, 4, 5), (128, 64, 8, 3), (128, 64, 8, 4), (128, 64, 4, 3),
             (64, 128, 4, 3), (128, 128, 8, 3), (128, 128, 8, 4), (256, 128, 8, 3),
             (256, 128, 8, 4), (256, 64, 8, 3)],
    "many": [(128, 64, 8, 3), (128, 128, 4, 2), (128, 128, 8, 2), (128, 128, 8, 3),
             (128, 128, 8, 4), (128, 256, 8, 2), (256, 128, 8, 2), (256, 128, 8, 4)],
}  # fmt: skip


def measure(calls: list[Callable[[], object]], budget: float = 0.03) -> float:
    """Seconds of one call, through a CUDA graph of all of them; the best of up to eight."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        calls[0]()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    best, spent = float("inf"), 0.0
    for _ in range(8):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        took = start.elapsed_time(end) / 1e3
        best, spent = min(best, took), spent + took
        if spent > budget:
            break
    return best / len(calls)


def make(kind: str, n: int, k: int) -> list[CudaWeight]:
    """Enough weights of random numbers to pass through L2."""
    dense = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02
    first = from_dense(dense) if kind == "bf16" else quantise_on_device(dense, kind)
    count = min(24, max(2, -(-L2 // first.nbytes)))
    return [first, *(copy(first) for _ in range(count - 1))]


def copy(w: CudaWeight) -> CudaWeight:
    def own(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else x.clone()

    return CudaWeight(
        w.shape, w.kind, w.data.clone(), None, w.form, own(w.scales), own(w.lows), own(w.supers),
        None, own(w.row_scales), None,
    )  # fmt: skip


def time_linear(some: list[CudaWeight], x: torch.Tensor) -> float:
    calls = [lambda w=w: products.linear(x, w, "bf16", True) for w in some]
    return measure(calls * max(1, 8 // len(calls)))


def time_cublas(some: list[CudaWeight], x: torch.Tensor) -> float:
    calls = [lambda w=w: torch.mm(x, w.data.t()) for w in some]
    return measure(calls * max(1, 8 // len(calls)))


def measure_ceilings() -> tuple[float, float]:
    """Bytes and operations a second: of a copy (read and written), of a bfloat16 product."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    moved = 2 * a.nbytes / measure([lambda: b.copy_(a)] * 4)
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return moved, 2 * 8192**3 / measure([lambda: torch.mm(x, x)] * 2)


def print_table(args: argparse.Namespace, ends: float) -> None:
    moved, rate = measure_ceilings()
    print(f"{torch.cuda.get_device_name()}: copy {moved / 1e9:.0f} GB/s, {rate / 1e12:.0f} TFLOP/s")
    for name in args.shapes:
        n, k = SHAPES[name]
        for kind in args.kinds:
            some = make(kind, n, k)
            for rows in args.rows:
                if time.monotonic() > ends:
                    print("out of time")
                    return
                x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
                took = time_linear(some, x)
                said = describe(some[0], rows, took, moved, rate)
                peer = f", cuBLAS {time_cublas(some, x) * 1e6:.1f} us" if kind == "bf16" else ""
                print(f"{name:7s} {kind:10s} T={rows:<5d} {said}{peer}", flush=True)
            del some


def describe(w: CudaWeight, rows: int, took: float, moved: float, rate: float) -> str:
    n, k = w.shape
    total = w.nbytes + rows * (2 * k + 4 * n)
    read, done = total / took, 2 * rows * n * k / took
    return (
        f"{took * 1e6:8.1f} us  {read / 1e9:6.0f} GB/s {100 * read / moved:3.0f} %  "
        f"{done / 1e12:6.1f} TFLOP/s {100 * done / rate:3.0f} %"
    )


def sweep(args: argparse.Namespace, ends: float) -> None:
    """The best tiles for each kind and number of rows, by shape; splits stay as they are."""
    for kind in args.kinds:
        for name in args.shapes:
            some = make(kind, *SHAPES[name])
            for rows in args.rows:
                size = "few" if rows <= 16 else "some" if rows <= 128 else "many"
                x = torch.randn(rows, SHAPES[name][1], device="cuda", dtype=torch.bfloat16)
                found = [(time_linear(some, x), "as it is", 0, 0, 0)]
                for tile in SWEPT[size]:
                    if time.monotonic() < ends:
                        found.append((try_tile(tile, some, x), *tile))
                for took, *tile in sorted(found, key=lambda f: f[0])[:4]:
                    print(f"{name} {kind} T={rows} {took * 1e6:.1f} us: {tile}", flush=True)


def try_tile(tile: tuple[int, int, int, int], some: list[CudaWeight], x: torch.Tensor) -> float:
    """Seconds with a tile; infinity where it does not fit the device."""
    bn, bt, warps, stages = tile
    held = products.find_plan(some[0], False)
    for w in some:
        mine = products.find_plan(w, False)
        w.cache[False] = replace(mine, tiles=[(0, bn, bt, mine.tiles[0][3], warps, stages)])
    try:
        return time_linear(some, x)
    except Exception as e:  # out of resources of one kind or another
        print(f"{tile}: {type(e).__name__} {str(e)[:100]}")
        return float("inf")
    finally:
        for w in some:
            w.cache[False] = replace(products.find_plan(w, False), tiles=held.tiles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--shapes", default="")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    shapes = args.shapes or ("qkv,up" if args.sweep else ",".join(SHAPES))
    args.kinds, args.shapes = args.kinds.split(","), shapes.split(",")
    args.rows = [int(rows) for rows in args.rows.split(",")]
    if args.sweep and len(args.rows) == len(ROWS):
        args.rows = [1, 64, 2048]
    ends = time.monotonic() + args.seconds
    (sweep if args.sweep else print_table)(args, ends)


if __name__ == "__main__":
    main()
