"""A process that loads a model, fills its K/V cache and says how much memory that took at most.

    python -m flyweight.planning.memory_probe < REQUEST

Invariant: one JSON object on stdin, one on stdout; what else is printed goes to stderr.  The peak
is of proportional memory (PSS), sampled while the model loads and runs.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from flyweight.describe import ModelDescription, SilentListener
from flyweight.errors import ConfigError, FlyweightError
from flyweight.plan.memory import MemoryPlan

INTERVAL = 0.02  # seconds between two samples
ROLLUP = Path("/proc/self/smaps_rollup")
ANSWER = 2  # tokens that each sequence writes
SEED = 7


class PeakSampler(threading.Thread):
    """The most memory that was seen while it ran."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._ended = 0, threading.Event()

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, measure_shared())
            if self._ended.wait(INTERVAL):
                return

    def stop(self) -> int:
        self.peak = max(self.peak, measure_shared())
        self._ended.set()
        self.join()
        return self.peak


class HeldListener(SilentListener):
    """Measures what the process holds when its memory is planned, which is before the weights."""

    held = 0

    def show_plan(self, plan: MemoryPlan, found: ModelDescription) -> None:
        self.held = measure_shared()


def measure_shared() -> int:
    """Bytes this process holds, pages it shares counted in part; 0 where Linux does not say."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", ROLLUP.read_text(), re.M)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def fill_model(options: dict[str, Any]) -> dict[str, int]:
    """Loads the model and answers as many prompts as it has sequences, each of the full length."""
    from flyweight.llm import LLM
    from flyweight.types import SamplingParams

    sampler = PeakSampler()
    sampler.start()
    listener = HeldListener()
    with LLM(notify=listener, **options) as llm:
        spec, limits = llm.loaded.spec, llm.loaded.limits
        draw = random.Random(SEED)
        size = limits.max_model_len - ANSWER
        prompts = [
            {"prompt_token_ids": [draw.randrange(spec.vocab) for _ in range(size)]}
            for _ in range(limits.max_num_seqs)
        ]
        params = SamplingParams(max_tokens=ANSWER, temperature=0.8, ignore_eos=True, seed=SEED)
        llm.generate(prompts, params, use_tqdm=False)
        return {"held": listener.held, "peak": sampler.stop()}


def probe_memory(options: dict[str, Any]) -> dict[str, int]:
    """The same in a process of its own: bytes held before the weights (`held`) and at the peak.
    Raises `ConfigError`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "flyweight.planning.memory_probe"],
        input=json.dumps(options),
        capture_output=True,
        text=True,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConfigError(f"the model could not be measured: {last}") from None
    if "refused" in found:
        raise ConfigError(f"the model could not be measured: {found['refused']}")
    return {"held": int(found["held"]), "peak": int(found["peak"])}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            json.dump(fill_model(json.load(sys.stdin)), out)
        except FlyweightError as error:
            json.dump({"refused": str(error)}, out)


if __name__ == "__main__":
    main()
