"""Checks and measures the CUDA backend on a GPU machine: torch and Triton, no network, no weights.

    python bench/gpu.py [--out gpu.json] [--parts ops,ceilings,decode,prefill,workload,peer]
                        [--models llama-3.1-8b,...] [--kinds bf16,fp8,q4_0] [--minutes 8]

Results go to --out after each measurement.  A run that ends at --minutes, or is stopped, goes on
from there: what the file has is not measured again.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "src")]

from gpu_parts.measure import Bench, measure_ceilings  # noqa: E402
from gpu_parts.models import CONFIGS, make_model  # noqa: E402
from gpu_parts.models import KINDS as READ_KINDS  # noqa: E402
from gpu_parts.workload import (  # noqa: E402
    make_engine,
    make_workload,
    run_engine,
    run_transformers,
)

from flyweight.ops.cuda import CudaOps  # noqa: E402

MODELS = ("llama-3.1-8b", "qwen3-0.6b", "qwen3-14b", "qwen3-30b-a3b")
KINDS = ("bf16", "fp8", "q4_0", "u4_g128")
BATCHES = (1, 8, 32, 64, 128, 256)
PROMPTS = (512, 2048, 8192)
CONTEXT = 1024
PARTS = ("ops", "ceilings", "decode", "prefill", "workload", "peer")


class Results:
    """What was measured so far, in a file."""

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self.ends = path, time.monotonic() + 60 * minutes
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def take(self, key: str, measure: Callable[[], Any]) -> Any:
        """A result, measured now unless it is there."""
        if key in self.found:
            return self.found[key]
        if time.monotonic() > self.ends:
            raise SystemExit(f"out of time before {key}; run again to go on")
        try:
            self.found[key] = measure()
        except torch.cuda.OutOfMemoryError:
            self.found[key] = {"failed": "out of device memory"}
        self.path.write_text(json.dumps(self.found, indent=1))
        print(f"{key}: {json.dumps(self.found[key])}", flush=True)
        return self.found[key]


def describe_device() -> dict[str, str]:
    import triton

    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "cuda": str(torch.version.cuda),
    }  # fmt: skip


def check_ops() -> dict[str, Any]:
    """The contract suite, on this device."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "tests/ops/cuda",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:])
    return {"exit": done.returncode, "last": lines[-1] if lines else ""}


def measure_decode(bench: Bench, batch: int, ceilings: dict[str, float]) -> dict[str, float]:
    seconds = bench.time_decode(batch)
    moved, operations = bench.count_decode(batch)
    floor = max(moved / ceilings["read_bytes"], operations / ceilings["bf16_flops"])
    return {
        "ms": 1e3 * seconds, "tokens_per_s": batch / seconds, "tb_per_s": moved / seconds / 1e12,
        "tflops": operations / seconds / 1e12, "share_of_roofline": floor / seconds,
        "share_of_bandwidth": moved / seconds / ceilings["read_bytes"],
    }  # fmt: skip


def measure_prefill(bench: Bench, tokens: int, ceilings: dict[str, float]) -> dict[str, float]:
    seconds = bench.time_prefill(tokens)
    rate = bench.count_prefill(tokens) / seconds
    return {
        "ms": 1e3 * seconds, "tokens_per_s": tokens / seconds, "tflops": rate / 1e12,
        "share_of_matrix_rate": rate / ceilings["bf16_flops"],
    }  # fmt: skip


def measure_model(results: Results, name: str, kind: str, args: argparse.Namespace) -> None:
    """Decode at every batch and prefill at every length, of one model."""
    ceilings = results.take("ceilings", measure_ceilings)
    ops = CudaOps(deterministic=not args.cublas)
    tag = f"{name} {kind}{' cublas' if args.cublas else ''}"
    model = None
    cases = [("decode", n) for n in args.batches] + [("prefill", n) for n in args.prompts]
    for what, n in cases:
        key = f"{what} {tag} {n}"
        if what not in args.parts or key in results.found:
            continue
        model = model or make_model(name, kind, ops)
        bench = Bench(model, *((n, CONTEXT) if what == "decode" else (1, n)))
        measure = measure_decode if what == "decode" else measure_prefill
        results.take(key, lambda m=measure, b=bench, n=n: m(b, n, ceilings))
        del bench
        gc.collect()
        torch.cuda.empty_cache()


def measure_workload(results: Results, requests: int, args: argparse.Namespace) -> None:
    """Random requests for Qwen3-0.6B in bf16 through our engine."""

    def run() -> dict[str, float]:
        engine = make_engine("qwen3-0.6b", "bf16", 256, deterministic=not args.cublas)
        other = make_workload(requests, seed=1)  # no prompt is in the prefix cache later
        run_engine(engine, other, "warm")  # graphs are captured, kernels compiled
        return run_engine(engine, make_workload(requests), "timed")

    results.take(f"workload {requests}{' cublas' if args.cublas else ''}", run)
    gc.collect()
    torch.cuda.empty_cache()


def parse_arguments() -> argparse.Namespace:
    def split(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        return lambda text: [convert(part) for part in text.split(",")]

    def choose(known: Iterable[str]) -> Callable[[str], list[str]]:
        def check(text: str) -> list[str]:
            for part in text.split(","):
                if part not in known:
                    words = f"{part!r} is unknown; allowed: {', '.join(known)}"
                    raise argparse.ArgumentTypeError(words)
            return text.split(",")

        return check

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--parts", type=choose(PARTS), default=list(PARTS))
    parser.add_argument("--models", type=choose(CONFIGS), default=list(MODELS))
    parser.add_argument("--kinds", type=choose(READ_KINDS), default=list(KINDS))
    parser.add_argument("--batches", type=split(int), default=list(BATCHES))
    parser.add_argument("--prompts", type=split(int), default=list(PROMPTS))
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--peer-requests", type=int, default=64)
    parser.add_argument("--cublas", action="store_true", help="dense products by cuBLAS")
    parser.add_argument("--minutes", type=float, default=8)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    results = Results(args.out, args.minutes)
    results.take("device", describe_device)
    if "ops" in args.parts:
        results.take("ops", check_ops)
    if "ceilings" in args.parts:
        results.take("ceilings", measure_ceilings)
    for name in args.models:
        for kind in args.kinds:
            if {"decode", "prefill"} & set(args.parts):
                measure_model(results, name, kind, args)
    if "workload" in args.parts:
        measure_workload(results, args.requests, args)
    if "peer" in args.parts:
        measure_workload(results, args.peer_requests, args)
        work = make_workload(args.peer_requests)
        key = f"workload {args.peer_requests} transformers"
        results.take(key, lambda: run_transformers("qwen3-0.6b", work))


if __name__ == "__main__":
    main()
