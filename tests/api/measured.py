"""Runs a model under a memory limit with its K/V full, in a process of its own, and reports what
was planned and what was held.

    python measured.py MODEL '{"memory_limit": ...}' PROMPTS TOKENS [TASK]

The peak is of the proportional set size, looked at every few milliseconds.
"""

import json
import re
import sys
import threading
import time
from pathlib import Path

from flyweight import LLM, BeamSearchParams, ConfigError, PoolingParams, SamplingParams
from flyweight.plan.memory import MemoryPlan

EVERY = 0.005  # seconds
ANSWER = 8  # tokens


class Watch:
    """Follows this process's memory on a thread of its own."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.is_set():
            text = Path("/proc/self/smaps_rollup").read_text()
            found = re.search(r"^Pss:\s+(\d+) kB", text, re.M)
            assert found
            self.peak = max(self.peak, 1024 * int(found[1]))
            time.sleep(EVERY)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.peak


def high_water() -> int:
    """The kernel's own peak of resident pages, shared ones counted in full."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found
    return 1024 * int(found[1])


class Planned(Exception):
    """Exits as soon as the plan is printed, which is before a tensor is read."""


class OnlyPlan:
    """A listener that wants the plan and no model."""

    def show_plan(self, plan: MemoryPlan, found: object) -> None:
        print(json.dumps(parts(plan)))
        raise Planned

    def report_progress(self, done: int, total: int) -> None: ...

    def warn(self, message: str) -> None: ...

    def note(self, message: str) -> None: ...


def parts(plan: MemoryPlan) -> dict[str, int]:
    rows = dict(plan.list_rows())
    return rows | {"need": plan.need, "limit": plan.limit, "blocks": plan.blocks}


def generate(llm: LLM, ids: list[list[int]]) -> None:
    params = SamplingParams(
        max_tokens=ANSWER, top_p=0.9, ignore_eos=True, logprobs=20, prompt_logprobs=20
    )
    llm.generate(ids, params, use_tqdm=False)


def embed(llm: LLM, ids: list[list[int]]) -> None:
    llm.embed(ids, PoolingParams("mean"), use_tqdm=False)


def search(llm: LLM, ids: list[list[int]]) -> None:
    beam = BeamSearchParams(beam_width=4, max_tokens=ANSWER, ignore_eos=True)
    llm.beam_search(ids, beam, use_tqdm=False)


TASKS = {"generate": generate, "embed": embed, "search": search}


def main(model: str, settings: str, prompts: str, tokens: str, task: str = "generate") -> None:
    """No prompts: the plan alone."""
    requested = json.loads(settings)
    watch = Watch()
    try:
        llm = LLM(model, **requested, notify=None if int(prompts) else OnlyPlan())
    except Planned:
        return
    except ConfigError as error:
        print(json.dumps({"refused": str(error)}))
        return
    length = int(tokens) - ANSWER
    ids = [[(31 * i + j) % 251 for j in range(length)] for i in range(int(prompts))]
    TASKS[task](llm, ids)
    print(json.dumps({"peak": watch.stop(), "high_water": high_water(), "stats": llm.stats(),
                      **parts(llm.loaded.memory)}))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
