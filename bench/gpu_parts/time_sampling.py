"""What drawing the tokens of a step costs on a GPU, by what is cut from the candidates.

    python bench/gpu_parts/time_sampling.py [--rounds 50] [--rows 1 64 256] [--vocab 151936 128256]

Two kinds of logits: `peaked`, as of a trained model (a few ids hold most of the mass), and `flat`
(normal numbers of spread 2: thousands of ids share it).  `device` is the time between events around
the submission, with the stream kept busy before, so that it holds no time of the host; `submit` and
`call` are the host's times, of the submission alone and of the whole call.  Medians, microseconds.
"""

import argparse
import time
from statistics import median

import numpy as np
import torch

from flyweight.ops.cuda.sample import sample, submit_sample
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.types import SamplingParams
from flyweight.wire import SampleBatch

KINDS = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "top_k 50, top_p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "top_p, repetition": {"top_p": 0.95, "repetition_penalty": 1.1},
    "greedy, logprobs 5": {"temperature": 0.0, "logprobs": 5},
}
WAIT_CYCLES = 2_000_000  # about a millisecond: longer than a submission


def make_logits(rows: int, vocab: int, kind: str) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(rows, vocab, device="cuda", generator=generator) * 2
    if kind == "peaked":
        best = torch.randint(0, vocab, (rows, 64), device="cuda", generator=generator)
        raised = torch.linspace(22, 8, 64, device="cuda").expand(rows, 64)
        logits.scatter_(1, best, raised + torch.randn_like(raised))
    return logits


def make_batch(rows: int, vocab: int, options: dict[str, float]) -> SampleBatch:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    history = np.random.default_rng(0).integers(0, vocab, 1000).tolist()
    return columns(
        [LogitsRow(SequenceOptions(params, r, 0, 500), 1000, history) for r in range(rows)]
    )


def measure(logits: torch.Tensor, s: SampleBatch, rounds: int) -> tuple[float, float, float]:
    device, submit, call = [], [], []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(WAIT_CYCLES)
        start.record()
        begun = time.perf_counter()
        pending = submit_sample(logits, s)
        submit.append((time.perf_counter() - begun) * 1e6)
        end.record()
        pending.collect()
        device.append(start.elapsed_time(end) * 1e3)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        sample(logits, s)
        call.append((time.perf_counter() - begun) * 1e6)
    return median(device), median(submit), median(call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--vocab", type=int, nargs="+", default=[151_936, 128_256])
    args = parser.parse_args()
    print(torch.cuda.get_device_name())
    for vocab in args.vocab:
        for rows in args.rows:
            for kind in ("peaked", "flat"):
                logits = make_logits(rows, vocab, kind)
                for name, options in KINDS.items():
                    s = make_batch(rows, vocab, options)
                    for _ in range(3):  # compiles
                        sample(logits, s)
                    device, submit, call = measure(logits, s, args.rounds)
                    print(
                        f"V {vocab}  R {rows:3}  {kind:6}  {name:20}  device {device:7.0f}  "
                        f"submit {submit:6.0f}  call {call:7.0f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
