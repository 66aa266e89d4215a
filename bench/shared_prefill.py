"""Requests with one prefix that arrive together: what is computed, and how long first tokens take,
where the requests wait for the one that computes the prefix, and where each computes it.

    python bench/shared_prefill.py [MODEL] [--requests 8] [--prefix 400] [--own 20] [--rounds 9]

Without a model, the one in the package.  Rounds of both kinds alternate, each with an empty prefix
cache and prompts of its own.  Figures are medians over the rounds.
"""

import argparse
import random
from statistics import mean, median

from flyweight import LLM, SamplingParams


def make_prompts(options: argparse.Namespace, seed: int, vocab: int) -> list[list[int]]:
    rng = random.Random(seed)

    def draw(count: int) -> list[int]:
        return [rng.randrange(vocab // 2, vocab) for _ in range(count)]

    prefix = draw(options.prefix)
    return [prefix + draw(options.own) for _ in range(options.requests)]


def run_round(llm: LLM, prompts: list[list[int]], sharing: bool) -> tuple[int, list[float], object]:
    """Tokens computed, times to the first tokens in order, and the answers."""
    llm.reset_prefix_cache()
    llm.loaded.engine.scheduler.shared.enabled = sharing
    before = llm.stats()["computed"]
    found = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
    answers = [one.outputs[0].token_ids for one in found]
    times = sorted(one.metrics.ttft for one in found)
    return llm.stats()["computed"] - before, times, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    for name, default in (("requests", 8), ("prefix", 400), ("own", 20), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    given = [options.model] if options.model else []
    llm = LLM(*given, threads=options.threads)
    vocab = llm.tokenizer.vocab_size
    rounds: dict[bool, list[tuple[int, list[float]]]] = {True: [], False: []}
    for number in range(options.rounds + 1):
        prompts = make_prompts(options, number, vocab)
        found = {
            sharing: run_round(llm, prompts, sharing)
            for sharing in (number % 2 == 0, number % 2 == 1)
        }
        assert found[True][2] == found[False][2], "other answers"
        if number:  # the first round warms up
            for sharing, (computed, times, _) in found.items():
                rounds[sharing].append((computed, times))
    for sharing, name in ((False, "each computes the prefix"), (True, "one computes it")):
        computed = {one for one, _ in rounds[sharing]}
        first, average, last = (
            1000 * median(pick(times) for _, times in rounds[sharing]) for pick in (min, mean, max)
        )
        print(
            f"{name}: {sorted(computed)} tokens computed; TTFT in ms: "
            f"first {first:.1f}, mean {average:.1f}, last {last:.1f}"
        )


if __name__ == "__main__":
    main()
