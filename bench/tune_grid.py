"""Compares what the search of `flyweight tune` chooses with the best of an exhaustive grid, on a
real model.

    python bench/tune_grid.py [MODEL] [--workload chat] [--minutes 4] [--rounds 3]

The search is given the settings and values of GRID only.  The grid is every combination of them,
each measured once a round, in an order that changes.  Its three best, what the search chose and the
defaults are then measured in turn: winning one noisy round does not count.  Prints medians of the
rounds' ratios of throughput.
"""

import argparse
import itertools
import random
import time
from statistics import median

from flyweight.config import Settings
from flyweight.describe import SilentListener, describe, find
from flyweight.text.absent import load_any_tokenizer
from flyweight.tune.load import make_load
from flyweight.tune.measure import LoadRunner
from flyweight.tune.search import DEFAULTS, SMALL, Search
from flyweight.tune.space import repair
from flyweight.tune.targets import Targets
from flyweight.tune.trial import SettingsTrial

GRID = {
    "max_num_seqs": (2, 4),
    "max_num_batched_tokens": (64, 128, 1024),
    "block_size": (16, 128),
}
BEST, FINAL_ROUNDS = 3, 7


def list_grid() -> list[SettingsTrial]:
    """Every combination, the defaults' values among them."""
    choices = [[None, *values] for values in GRID.values()]
    return [
        SettingsTrial.of(repair({n: v for n, v in zip(GRID, values, strict=True) if v is not None}))
        for values in itertools.product(*choices)
    ]


def list_singles() -> list[SettingsTrial]:
    return [SettingsTrial.of(repair({name: v})) for name, values in GRID.items() for v in values]


def measure_in_turn(
    runner: LoadRunner, candidates: list[SettingsTrial], rounds: int
) -> dict[SettingsTrial, list[float]]:
    """Throughput of each, round by round."""
    seen: dict[SettingsTrial, list[float]] = {one: [] for one in candidates}
    order, shuffle = [*candidates], random.Random(0)
    for done in range(rounds):
        shuffle.shuffle(order)
        for one in order:
            seen[one].append(runner.measure(one, SMALL).throughput)
        print(f"  round {done + 1} of {rounds}", flush=True)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="stories")
    parser.add_argument("--workload", default="chat")
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    settings = Settings.of(model=args.model)
    spec = describe(find(settings, SilentListener()), {}, load_any_tokenizer).spec
    load = make_load(args.workload, None, spec.vocab, spec.context)
    runner = LoadRunner(args.model, load, {"max_model_len": min(spec.context, load.longest + 8)})
    search = Search(Targets(), runner.measure, time.monotonic, 60 * args.minutes)
    chosen = search.run(list_singles())
    print(f"search: {chosen.name}, after {sum(len(r.seen) for r in search.rounds)} measurements")
    grid = list_grid()
    print(f"grid: {len(grid)} candidates")
    seen = measure_in_turn(runner, grid, args.rounds)
    best = sorted(seen, key=lambda one: -median(seen[one]))[:BEST]
    final = measure_in_turn(runner, [*{chosen, DEFAULTS, *best}], FINAL_ROUNDS)
    print(f"medians of ratios over {FINAL_ROUNDS} rounds, to the search's choice:")
    for one, values in final.items():
        ratio = median(a / b for a, b in zip(values, final[chosen], strict=True))
        print(f"  {ratio:.3f}  {median(values):8.1f} tokens/s  {one.name}")


if __name__ == "__main__":
    main()
