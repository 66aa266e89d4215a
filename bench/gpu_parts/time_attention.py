"""Times attention and what stores K and V on a GPU, for the heads of Llama-3.1-8B and Qwen3-0.6B.

    python bench/gpu_parts/time_attention.py --help

GB/s counts K and V of the contexts once, TFLOP/s the products a causal prompt needs.  Layers are
rotated so that none stays in L2.  --sweep tries other tiles and prints the best ones: keys and
split decide bits, rows, warps and stages do not.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from flyweight.ops.cuda import attention
from flyweight.ops.cuda.attention import CudaKV, Seen, Tiles, TileShape
from flyweight.ops.cuda.step import DeviceBatch
from flyweight.ops.operands import Rotation
from flyweight.spec import KVGroup

MODELS = {
    "llama": (32, KVGroup(8, 128, 128)), "qwen": (16, KVGroup(8, 128, 128)),
    "gemma": (8, KVGroup(4, 256, 256)), "mla": (128, KVGroup(1, 576, 512, v_in_k=True)),
}  # fmt: skip
DECODES = ((1, 1024), (1, 8192), (16, 2048), (128, 1024), (256, 1024))
PROMPTS = (2048, 8192)
BLOCK = 32
L2 = 192 << 20  # bytes of K and V that take turns, at least
MEMORY = 24 << 30  # at most


def measure(calls: list[Callable[[], object]], budget: float = 0.03) -> float:
    """Seconds of one call, through a CUDA graph of all of them; the best of up to eight."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
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


class Case:
    """Sequences of one context over shuffled blocks, each with its last `count` tokens."""

    def __init__(self, heads: int, group: KVGroup, dtype: str, shape: tuple[int, int, int]) -> None:
        self.sequences, self.context, self.count = shape
        each = -(-self.context // BLOCK)
        blocks = self.sequences * each
        first = attention.make_kv_layer(group, blocks, BLOCK, dtype, torch.device("cuda"))
        copies = max(1, min(24, -(-L2 // first.nbytes), MEMORY // first.nbytes))
        more = (
            attention.make_kv_layer(group, blocks, BLOCK, dtype, torch.device("cuda"))
            for _ in range(copies - 1)
        )
        self.layers = [first, *more]
        self.batch = make_batch(*shape, each)
        tokens = self.sequences * self.count
        wide = heads * group.k_dim + group.width
        self.qkv = torch.randn(tokens, wide, device="cuda")
        kind = torch.bfloat16 if first.pairs else torch.float32
        self.q = torch.randn(tokens, heads, group.k_dim, device="cuda").to(kind)
        half = group.k_dim // 2
        self.rope = Rotation(*torch.randn(2, tokens, half, device="cuda").unbind(0))  # type: ignore[arg-type]
        self.seen = Seen(group.k_dim**-0.5)
        for kv in self.layers:
            fill(kv)

    def attend(self) -> float:
        def call(kv: CudaKV) -> Callable[[], object]:
            return lambda: attention.attend(self.q, kv, self.batch, self.seen, torch.bfloat16)

        calls = [call(kv) for kv in self.layers]
        return measure(calls * max(1, 8 // len(calls)))

    def store(self) -> float:
        def call(kv: CudaKV) -> Callable[[], object]:
            return lambda: attention.rope_store(self.qkv, kv, self.batch, self.rope, None)

        calls = [call(kv) for kv in self.layers]
        return measure(calls * max(1, 8 // len(calls)))

    @property
    def read(self) -> int:
        """Bytes of K and V that are seen."""
        return self.layers[0].nbytes

    @property
    def done(self) -> float:
        """Operations of the products of q, K and V."""
        group, (_, heads, _) = self.layers[0].group, self.q.shape
        pairs = self.count * self.context - self.count * (self.count - 1) / 2
        return 2.0 * self.sequences * heads * pairs * (group.k_dim + group.v_dim)


def fill(kv: CudaKV) -> None:
    for held in (kv.k, kv.v):
        if held is not None and held.is_floating_point() and held.dtype.itemsize > 1:
            held.normal_()
        elif held is not None:
            held.view(torch.uint8).random_(0, 120)
    for scale in kv.scales or ():
        scale.fill_(0.01)


def make_batch(sequences: int, context: int, count: int, each: int) -> DeviceBatch:
    def put(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x.astype(np.int32)).cuda()

    tables = np.random.default_rng(0).permutation(sequences * each).reshape(sequences, each)
    where = np.arange(context - count, context)
    slots = tables[:, where // BLOCK] * BLOCK + where % BLOCK
    return DeviceBatch(
        tokens=put(np.zeros(sequences * count)),
        positions=put(np.tile(where, sequences)),
        slots=put(slots.ravel()),
        owners=put(np.repeat(np.arange(sequences), count)),
        starts=put(np.arange(sequences + 1) * count),
        contexts=put(np.full(sequences, context)),
        tables=put(tables),
        decode=count == 1,
        most=count,
        longest=context,
    )


def measure_copy() -> float:
    """Bytes a second of a copy, read and written."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.nbytes / measure([lambda: b.copy_(a)] * 4)


def make_mixed(case: Case, prompt: int) -> None:
    """The case's decodes, but for the last sequence, which has `prompt` tokens."""
    batch, own = case.batch, case.sequences - 1
    positions = torch.arange(case.context - prompt, case.context, device="cuda", dtype=torch.int32)
    counts = torch.tensor([1] * own + [prompt], device="cuda")
    case.batch = replace(
        batch,
        positions=torch.cat([batch.positions[:own], positions]),
        starts=torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int(),
        decode=False,
        most=prompt,
    )
    case.q = torch.randn(own + prompt, *case.q.shape[1:], device="cuda").to(case.q.dtype)


def list_cases() -> Iterator[tuple[int, int, int]]:
    """(sequences, context, tokens of each)."""
    yield from ((s, c, 1) for s, c in DECODES)
    yield from ((1, c, c) for c in PROMPTS)
    yield 16, 2048, 4  # a few tokens of each, as speculation has them


def print_table(args: argparse.Namespace, ends: float) -> None:
    moved = measure_copy()
    print(f"{torch.cuda.get_device_name()}: copy {moved / 1e9:.0f} GB/s")
    for name, dtype in itertools.product(args.models, args.dtypes):
        for shape in list_cases():
            if time.monotonic() > ends:
                print("out of time")
                return
            case = Case(*MODELS[name], dtype, shape)
            took, stored = case.attend(), case.store()
            rate, speed = case.read / took, case.done / took
            print(
                f"{name:6s} {dtype:8s} S={shape[0]:<4d} context={shape[1]:<6d} T={shape[2]:<5d}"
                f"{took * 1e6:9.1f} us {rate / 1e9:6.0f} GB/s {100 * rate / moved:3.0f} %"
                f" {speed / 1e12:6.1f} TFLOP/s   rope_store {stored * 1e6:7.1f} us",
                flush=True,
            )
            del case
        case = Case(*MODELS[name], dtype, (129, 1024, 1))
        make_mixed(case, 512)
        print(f"{name:6s} {dtype:8s} 128 decodes and a chunk of 512: {case.attend() * 1e6:9.1f} us")


SPLITS = (  # keys, short, near, split
    (32, 128, 1024, 512), (64, 128, 1024, 512), (32, 256, 1024, 512), (32, 128, 1024, 1024),
)  # fmt: skip
SHAPES = {
    "few": [TileShape(64, 4, 3, 168), TileShape(64, 4, 4)],
    "lone": [TileShape(64, 4, 5), TileShape(64, 4, 3)],
    "many": [TileShape(128, 8, 3), TileShape(64, 4, 3, 168)],
}


def sweep(args: argparse.Namespace, ends: float) -> None:
    """The best tiles for many decodes, for one, and for a prompt; keys and splits serve all."""
    for name, dtype in itertools.product(args.models, args.dtypes):

        def make(*shapes: tuple[int, int, int]) -> list[Case]:
            return [Case(*MODELS[name], dtype, shape) for shape in shapes]  # noqa: B023

        cases = {
            "few": make((128, 1024, 1), (256, 1024, 1)),
            "lone": make((1, 1024, 1), (1, 8192, 1)),
            "many": make((1, 4096, 4096)),
        }
        compare_rows(cases["few"][0])
        for splits in SPLITS:
            for size, shapes in SHAPES.items():
                for shape in shapes:
                    if time.monotonic() > ends:
                        print("out of time")
                        return
                    tiles = Tiles(*splits, shape, shape, shape)
                    took = [try_tiles(tiles, case) * 1e6 for case in cases[size]]
                    said = "  ".join(f"{t:8.1f}" for t in took)
                    print(f"{name} {dtype} {splits} {size} {shape}: {said} us", flush=True)
        for programs in (512, 2048, 4096):
            attention.MANY_PROGRAMS = programs
            took = [case.attend() * 1e6 for case in cases["few"]]
            print(f"{name} MANY_PROGRAMS={programs}: {took[0]:.1f}  {took[1]:.1f} us")
        attention.MANY_PROGRAMS = 1024


def compare_rows(case: Case) -> None:
    """Whether a program of 16 rows, another instruction, gives the bits of 64; and its time."""
    held, outs = dict(attention.CONFIG), []
    for shape in (TileShape(64, 4, 3, 168), TileShape(16, 4, 3), TileShape(16, 4, 4)):
        tiles = Tiles(*SPLITS[0], shape, shape, shape)
        attention.CONFIG.update(dict.fromkeys(held, tiles))
        kv = case.layers[0]
        outs.append(attention.attend(case.q, kv, case.batch, case.seen, torch.bfloat16))
        same = bool((outs[0] == outs[-1]).all())
        print(f"{shape}: the bits of 64 rows: {same}, {case.attend() * 1e6:.1f} us", flush=True)
    attention.CONFIG.update(held)


def try_tiles(tiles: Tiles, case: Case) -> float:
    """Seconds with these tiles; infinity where they do not fit the device."""
    held = dict(attention.CONFIG)
    attention.CONFIG.update(dict.fromkeys(held, tiles))
    try:
        return case.attend()
    except Exception as e:  # out of resources of one kind or another
        print(f"{tiles}: {type(e).__name__} {str(e)[:90]}")
        torch.cuda.synchronize()
        return float("inf")
    finally:
        attention.CONFIG.update(held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="llama,qwen")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    args.models, args.dtypes = args.models.split(","), args.dtypes.split(",")
    ends = time.monotonic() + args.seconds
    (sweep if args.sweep else print_table)(args, ends)


if __name__ == "__main__":
    main()
