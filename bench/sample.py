"""What drawing the tokens of a step costs, by what is cut from the candidates.

    python bench/sample.py [--rows 16] [--vocab 151936] [--spread 1.5] [--threads 2] [--rounds 30]

Logits are normal numbers of that spread.  Kinds are timed in turn; medians of the rounds.
"""

import argparse
import time
from statistics import median

import numpy as np

from flyweight.ops.cpu import CpuOps
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.types import SamplingParams

KINDS = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "temperature 0.7": {"temperature": 0.7},
    "top_k 40": {"top_k": 40},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "logprobs 5": {"temperature": 0.0, "logprobs": 5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--spread", type=float, default=1.5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    ops = CpuOps(threads=args.threads)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, args.spread, (args.rows, args.vocab)).astype(np.float32)
    batches = {}
    for name, options in KINDS.items():
        params = SamplingParams(**options)  # type: ignore[arg-type]
        batches[name] = columns(
            [LogitsRow(SequenceOptions(params, 7, r, 0), r, []) for r in range(args.rows)]
        )
    taken: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(args.rounds):
        for name, batch in batches.items():
            start = time.perf_counter()
            ops.sample(logits, batch)
            taken[name].append(time.perf_counter() - start)
    for name, seconds in taken.items():
        print(f"{name:16} {median(seconds) * 1e3:7.2f} ms")


if __name__ == "__main__":
    main()
