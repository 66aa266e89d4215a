"""What drafting costs in Python: microseconds of a step beside the model, by what is done in it.

    python bench/draft_overhead.py MODEL [--workload random] [--rounds 20] [--method ngram]

"plain" steps are those of which no draft was wanted.  The time that timing takes is measured with
a call that does nothing, and left out.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import mean, median
from typing import Any

from flyweight.config import find_data_folder
from flyweight.prove.spec_drafters import choose_drafters
from flyweight.prove.spec_session import SpecEngine, open_bench
from flyweight.prove.spec_texts import list_workloads

PARTS = ("end", "choose", "take")  # of the controller


class PartTimes:
    """Seconds of calls, by name; `calls` since the newest step began."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.calls: set[str] = set()
        self.spare = 0.0
        nothing = self.watch("nothing", lambda: None)
        for _ in range(1000):
            nothing()
        self.spare = median(self.seconds.pop("nothing"))

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*given)
            finally:
                self.seconds[name].append(time.perf_counter() - began - self.spare)
                self.calls.add(name)

        return timed


def watch_drafts(drafts: Any, times: PartTimes) -> None:
    """Times the calls of a side's drafts; those of a step by whether drafts were wanted."""
    for name in PARTS:
        setattr(
            drafts.limits, name, times.watch(f"controller: {name}", getattr(drafts.limits, name))
        )
    drafter = drafts.calls.drafter
    drafter.propose = times.watch("drafter: propose", drafter.propose)
    drafts.begin = times.watch("step: begin", drafts.begin)
    propose = drafts.propose

    def sort(*given: Any) -> None:
        times.calls.clear()
        began = time.perf_counter()
        propose(*given)
        taken = time.perf_counter() - began
        wanted = "controller: choose" in times.calls
        timed = "controller: end" in times.calls
        kind = "drafts wanted" if wanted else "plain, timed" if timed else "plain"
        times.seconds[f"step: after, {kind}"].append(taken - times.spare)

    drafts.propose = sort


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--workload", default="random")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--method", default="ngram")
    given = parser.parse_args()
    config = {"method": given.method, "num_speculative_tokens": 10}
    drafters = choose_drafters(given.model, json.dumps(config), None)
    bench = open_bench(SpecEngine(given.model, {}, 4000, 96, replayed=True), drafters)
    work = next(w for w in list_workloads(find_data_folder()) if w.name == given.workload)
    times = PartTimes()
    watch_drafts(bench.sides[-1].drafts, times)
    runs = bench.run(work, given.rounds)
    steps = len(times.seconds["step: begin"])
    spent = sum(sum(found) for name, found in times.seconds.items() if name.startswith("step:"))
    print(f"{given.workload}, {given.method}: {steps} steps, {1e6 * spent / steps:.2f} us of each")
    for side, found in runs.items():
        print(f"{side:12s} {1e6 * median(run.pace for run in found):8.1f} us a token")
    print(f"{'':28s} {'calls':>7s} {'median, us':>11s} {'mean, us':>9s}")
    for name, seconds in sorted(times.seconds.items()):
        print(
            f"{name:28s} {len(seconds):7d} {1e6 * median(seconds):11.2f} {1e6 * mean(seconds):9.2f}"
        )


if __name__ == "__main__":
    main()
