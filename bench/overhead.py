"""Where a decode step's time goes: the kernels, and everything that is not a kernel.

    python bench/overhead.py [MODEL] [--threads 1] [--seqs 1] [--steps 400] [--temperature 0]
                             [--json]

MODEL is a model file, by default the model inside.  Wall time in microseconds a step, the lower
quartile over the steps, because neighbours only ever add to it; "native" is time inside the
extension.  The timers themselves cost a step some 5 us.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from flyweight import LLM, SamplingParams, _native
from flyweight.engine import engine as engine_room
from flyweight.requests.collector import Collector

PROMPT = "Once upon a time"


class Clock:
    """Time spent in wrapped functions, by name, step by step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self.now: dict[str, int] = {}

    def wrap(self, owner: Any, name: str, part: str) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, self._timed(inner, part))

    def _timed(self, inner: Callable[..., Any], part: str) -> Callable[..., Any]:
        now, clock = self.now, time.perf_counter_ns

        def timed(*args: Any, **more: Any) -> Any:
            began = clock()
            try:
                return inner(*args, **more)
            finally:
                now[part] = now.get(part, 0) + clock() - began

        return timed

    def turn(self) -> None:
        """A step is over."""
        self.steps.append(dict(self.now))
        self.now.clear()


def watched(llm: LLM) -> Clock:
    clock, engine = Clock(), llm.loaded.engine
    for name in dir(_native):
        if callable(getattr(_native, name)) and not isinstance(getattr(_native, name), type):
            clock.wrap(_native, name, "native")
    runner: Any = engine.runner
    clock.wrap(engine.scheduler, "schedule", "schedule")
    clock.wrap(engine_room, "build", "build")
    clock.wrap(runner.model, "hidden", "forward")
    clock.wrap(runner.model, "logits", "forward")
    clock.wrap(type(runner.ops), "sample", "sample")
    clock.wrap(engine, "_verify", "commit")
    clock.wrap(engine.scheduler, "commit", "commit")
    clock.wrap(engine, "step", "step")
    clock.wrap(Collector, "feed", "events")
    step, ended = llm.loop.step, [time.perf_counter_ns()]

    def turned() -> None:
        step()
        clock.now["total"] = time.perf_counter_ns() - ended[0]
        clock.turn()
        ended[0] = time.perf_counter_ns()

    llm.loop.step = turned  # type: ignore[method-assign]
    return clock


def measure(llm: LLM, seqs: int, steps: int, temperature: float) -> dict[str, float]:
    """Microseconds a step, part by part; parts but `total` and `native` hold no native time."""
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=steps, ignore_eos=True)
    clock = watched(llm)
    llm.generate([PROMPT] * seqs, params, use_tqdm=False)
    found: dict[str, list[int]] = {}
    for step in clock.steps[1:]:  # the first is the prompt's
        for name, nanoseconds in parts_of(step).items():
            found.setdefault(name, []).append(nanoseconds)
    return {name: float(np.quantile(times, 0.25)) / 1e3 for name, times in found.items()}


def parts_of(spent: dict[str, int]) -> dict[str, int]:
    """One step's time; `overhead` is all that is not native."""
    own = ("schedule", "build", "commit")
    computing = spent["forward"] + spent["sample"]
    return {
        **{name: spent[name] for name in own},
        "calls of kernels": computing - spent["native"],
        "rest of the engine": spent["step"] - computing - sum(spent[name] for name in own),
        "events": spent["events"],
        "loop and outputs": spent["total"] - spent["step"] - spent["events"],
        "overhead": spent["total"] - spent["native"],
        "native": spent["native"],
        "total": spent["total"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seqs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    length = args.steps + 16
    llm = LLM(args.model, threads=args.threads, max_model_len=length, max_num_seqs=args.seqs)
    found = measure(llm, args.seqs, args.steps, args.temperature)
    if args.json:
        print(json.dumps({name: round(us, 1) for name, us in found.items()}))
        return
    for name, us in found.items():
        print(f"{name:20} {us:8.1f} us  {us / found['total']:6.1%}")


if __name__ == "__main__":
    main()
