"""Compares the decode steps of files of one model: quantised against bfloat16, say.

    python bench/decode_ratio.py bf16.gguf q8_0.gguf q4_0.gguf [--rounds 60] [--threads 2]

All files are loaded at once and decode one sequence each, in turns of a few steps, so that a
machine whose memory gets faster and slower does so for all of them.  Prints milliseconds a step,
and the median over rounds of the first file's time by each other's, with quartiles.
"""

import argparse
import time
from statistics import median, quantiles

from flyweight import LLM, SamplingParams
from flyweight.types import Request

PROMPT = tuple(range(3, 19))
STEPS = 4  # in a turn, after one that is not timed: the caches hold another model's weights


def open_model(path: str, threads: int | None, tokens: int) -> LLM:
    """The model, with one sequence at its first answer token."""
    llm = LLM(path, threads=threads, max_num_seqs=1, max_model_len=2048, blocks=72)
    llm.loaded.moving.settle()
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    llm.loop.driver.add(Request("bench", PROMPT, params, max_tokens=tokens))
    llm.loop.driver.step()
    return llm


def time_turn(llm: LLM) -> float:
    """Milliseconds a step."""
    llm.loop.driver.step()
    start = time.perf_counter()
    for _ in range(STEPS):
        llm.loop.driver.step()
    return (time.perf_counter() - start) / STEPS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    tokens = (STEPS + 1) * args.rounds + 2
    models = {path: open_model(path, args.threads, tokens) for path in args.files}
    rounds = [{path: time_turn(llm) for path, llm in models.items()} for _ in range(args.rounds)]
    first = args.files[0]
    for path in args.files:
        ratios = [times[first] / times[path] for times in rounds]
        low, _, high = quantiles(ratios, n=4)
        print(
            f"{path}: {median(times[path] for times in rounds):.2f} ms a step, "
            f"{median(ratios):.2f} times as fast as {first} (quartiles {low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    main()
