"""flyweight beside llama.cpp on the same file, run in turn: A B A B ..., medians of the pairwise
ratios.

    python bench/against_llamacpp.py LLAMA_BENCH MODEL.gguf [MODEL.gguf ...] [--rounds 5] [--threads
    2]

LLAMA_BENCH is llama.cpp's own `llama-bench` binary.  A read-bandwidth sample is taken before and
after every round, because it is what decode is bound by and it drifts on shared machines; only
ratios count.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from attention import bandwidth

HERE = Path(__file__).parent


def ours(model: str, threads: int) -> dict[str, float]:
    command = [sys.executable, str(HERE / "decode.py"), model, "--threads", str(threads)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


def theirs(binary: str, model: str, threads: int) -> dict[str, float]:
    command = [
        binary,
        "-m",
        model,
        "-t",
        str(threads),
        "-p",
        "512",
        "-n",
        "64",
        "-r",
        "3",
        "-o",
        "jsonl",
    ]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {"prefill" if row["n_prompt"] else "decode": median(row["samples_ts"]) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for model in args.models:
        size = Path(model).stat().st_size / 1e9
        rounds = []
        for _ in range(args.rounds):
            before = bandwidth(args.threads)
            a, b = ours(model, args.threads), theirs(args.binary, model, args.threads)
            rounds.append((a, b, (before + bandwidth(args.threads)) / 2))
        print(Path(model).name)
        for what in ("decode", "prefill"):
            a, b = median(r[0][what] for r in rounds), median(r[1][what] for r in rounds)
            ratio = median(r[0][what] / r[1][what] for r in rounds)
            print(
                f"  {what}: ours {a:.1f}, llama.cpp {b:.1f} tokens/s; "
                f"median of pairwise ratios {ratio:.2f}"
            )
        share = median(r[0]["decode"] * size / r[2] for r in rounds)
        read = median(r[2] for r in rounds)
        print(f"  decode reads {share:.0%} of the {read:.0f} GB/s sampled beside it")


if __name__ == "__main__":
    main()
