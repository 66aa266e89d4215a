"""What verifying a tree of draft tokens costs, relative to the same number in a chain and to none.

    python bench/trees.py MODEL [--paths "[(0,), (1,), (0, 0)]"] [--depths 64,1024] [--rounds 15]

The drafts are wrong, so each step settles one token.  Steps with no draft, a chain and a tree
alternate in one process; ratios are medians over rounds, of steps of the same round.
"""

import argparse
import time
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any, cast

from flyweight import LLM, SamplingParams
from flyweight.bench.facts import Surroundings
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.tree import put_in_order, split_runs
from flyweight.types import Request
from flyweight.validation.token_tree import list_parents, read_token_tree
from flyweight.wire import Batch, Tensor

PATHS = (
    "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), "
    "(1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0)]"
)
FIRST = 100  # draft tokens are this id and those after it
KINDS = ("none", "chain", "tree")


class WrongDrafter:
    """Proposes tokens that the model would not, in the `kind` of draft that is set."""

    taps: tuple[int, ...] = ()

    def __init__(self, parents: Sequence[int]) -> None:
        self.parents, self.kind = tuple(parents), "none"

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Learns nothing."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        tokens = tuple(range(FIRST, FIRST + len(self.parents))) if self.kind != "none" else ()
        return [Draft(tokens, self.parents if self.kind == "tree" else None) for _ in requests]

    def forget(self, id: Hashable) -> None:
        """Keeps nothing."""


def measure(llm: LLM, drafter: WrongDrafter, depth: int, rounds: int) -> list[list[float]]:
    """Seconds of a step of each kind, round by round, from a context of `depth` tokens on."""
    driver = llm.loop.driver
    length = (rounds + 2) * len(KINDS) + 2
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=length)
    prompt = tuple(1000 + i % 500 for i in range(depth))
    driver.add(Request(f"depth{depth}", prompt, params, max_tokens=length))
    engine = cast(Any, llm.loaded.engine)
    while engine.metrics.produced == 0 or engine.scheduler.waiting:
        driver.step()  # the prompt
    found: list[list[float]] = []
    for _ in range(rounds + 1):
        times = []
        for kind in (*KINDS[1:], KINDS[0]):  # the draft of the step after
            drafter.kind = kind
            began = time.perf_counter()
            driver.step()
            times.append(time.perf_counter() - began)
        found.append(times)
    while engine.busy:
        driver.step()
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a tree of draft tokens.")
    parser.add_argument("model")
    parser.add_argument("--paths", default=PATHS)
    parser.add_argument("--depths", default="64,1024")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    parents = list_parents(read_token_tree(args.paths, "--paths", 64))
    ordered = put_in_order(range(len(parents)), parents)[1]
    branches = len(split_runs(ordered)) - 1 if ordered else 0
    depths = [int(depth) for depth in args.depths.split(",")]
    llm = LLM(
        args.model, threads=args.threads, draft_tokens=len(parents), max_num_seqs=2,
        max_model_len=max(depths) + 3 * args.rounds + 100,
    )  # fmt: skip
    drafter = WrongDrafter(parents)
    cast(Any, llm.loaded.engine).drafts.calls.use(drafter)
    around = Surroundings.here()
    print(f"{around.cpu}, {around.cores} cores, {llm.loaded.isa}; {around.commit}")
    print(f"a tree of {len(parents)} tokens with {branches} branches\n")
    print("| context | one row, ms | chain / one row | tree / one row | tree / chain |")
    print("|---:|---:|---:|---:|---:|")
    for depth in depths:
        found = measure(llm, drafter, depth, args.rounds)
        chain, tree, both = (
            median(times[a] / times[b] for times in found) for a, b in ((1, 0), (2, 0), (2, 1))
        )
        one = 1e3 * median(times[0] for times in found)
        print(f"| {depth} | {one:.1f} | {chain:.2f} | {tree:.2f} | {both:.2f} |")


if __name__ == "__main__":
    main()
