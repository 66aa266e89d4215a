"""CPU time of a step outside the model: schedule, build and commit of many decoding sequences.

    python bench/scheduler.py [--sequences 128] [--prompt 512] [--steps 200] [--sampled]

No model runs: every row draws the same token.  Processor time, in microseconds a step: on a busy
machine the least is nearer the truth than the median.
"""

import argparse
import time
from statistics import median

import numpy as np

from flyweight.config import Limits
from flyweight.engine.batch import build
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import Produced
from flyweight.kv.blocks import BlockPool
from flyweight.ops.cpu import CpuOps
from flyweight.sampling.arrays import OptionColumns
from flyweight.types import Request, SamplingParams

VOCAB = 2048


def scheduler(args: argparse.Namespace) -> Scheduler:
    """All prompts different, all room for the answers."""
    length = args.prompt + args.steps + 64
    blocks = args.sequences * (length // args.block_size + 2)
    limits = Limits(
        max_num_seqs=args.sequences,
        max_num_batched_tokens=max(2048, args.sequences),
        max_model_len=length + 1,
        block_size=args.block_size,
        blocks=blocks,
    )
    made = Scheduler(limits, BlockPool(blocks, args.block_size))
    params = SamplingParams(
        temperature=0.8 if args.sampled else 0.0,
        top_p=0.95 if args.sampled else 1.0,
        repetition_penalty=1.1 if args.penalised else 1.0,
        max_tokens=args.steps + 63,
    )
    for i in range(args.sequences):
        tokens = tuple((7 * i + j) % VOCAB for j in range(args.prompt))
        made.add(Request(f"r{i}", tokens, params, max_tokens=args.steps + 63, seed=i))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--sampled", action="store_true", help="temperature and top-p")
    parser.add_argument("--penalised", action="store_true", help="a repetition penalty")
    args = parser.parse_args()
    made, ops, lay = scheduler(args), CpuOps(threads=1), OptionColumns()
    logits = np.zeros((args.sequences, VOCAB), np.float32)
    times: dict[str, list[int]] = {name: [] for name in ("schedule", "build", "sample", "commit")}
    while len(times["commit"]) < args.steps:
        marks = [time.process_time_ns()]
        plan = made.schedule()
        marks.append(time.process_time_ns())
        batch = build(plan, args.block_size, None, lay)
        marks.append(time.process_time_ns())
        if len(batch.rows):
            ops.sample(logits[: len(batch.rows)], batch.sampling)
        produced = [Produced([5] if c.rows else []) for c in plan.chunks]
        marks.append(time.process_time_ns())
        made.commit(plan, produced)
        marks.append(time.process_time_ns())
        if all(c.count == 1 for c in plan.chunks):
            for name, start, stop in zip(times, marks, marks[1:], strict=False):
                times[name].append(stop - start)
    print(f"{args.sequences} sequences decoding after {args.prompt} tokens")
    print("us of CPU a step: least, median")
    for name, found in times.items():
        print(f"{name:9} {min(found) / 1e3:8.1f} {median(found) / 1e3:8.1f}")


if __name__ == "__main__":
    main()
