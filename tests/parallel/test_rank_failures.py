"""Ranks that fail: rank 0 reports it in one line, and leaves neither process nor folder behind."""

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from flyweight import LLM, SamplingParams
from flyweight.errors import ConfigError
from flyweight.parallel import connections, processes
from flyweight.parallel.processes import RankProcesses

PAIR: dict[str, Any] = {"threads": 2, "tensor_parallel_size": 2, "max_model_len": 256}
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The ranks that a test starts."""
    found: list[subprocess.Popen[bytes]] = []
    start = processes.start_rank

    def keep(*given: Any) -> "subprocess.Popen[bytes]":
        found.append(start(*given))
        return found[-1]

    monkeypatch.setattr(processes, "start_rank", keep)
    return found


def test_a_rank_that_ends_at_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", ""], stdin=pipe, stdout=pipe)

    monkeypatch.setattr(processes, "start_rank", start)
    with pytest.raises(ConfigError, match=r"^rank 1 ended before it had loaded its part"):
        LLM("stories", **PAIR)


def test_a_rank_that_ends_before_it_is_connected_is_reported(
    monkeypatch: pytest.MonkeyPatch, started: list["subprocess.Popen[bytes]"]
) -> None:
    wait: Callable[[RankProcesses], None] = RankProcesses.wait

    def wait_and_kill(self: RankProcesses) -> None:
        wait(self)
        started[0].kill()
        started[0].wait()

    monkeypatch.setattr(RankProcesses, "wait", wait_and_kill)
    monkeypatch.setattr(connections, "SOON", timedelta(seconds=1))
    with pytest.raises(ConfigError, match=r"^a rank ended before it was connected"):
        LLM("stories", **PAIR)


def test_ranks_end_where_loading_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, started: list["subprocess.Popen[bytes]"]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flyweight.build.load_weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        LLM("stories", **PAIR)
    (rank,) = started
    assert rank.poll() is not None


def test_an_error_of_sampling_ends_its_request_alone() -> None:
    with LLM("stories", **PAIR) as llm:
        runner: Any = llm.loaded.engine.runner
        sample, broken = runner.runner.sample, ["once"]

        def fail(*given: Any) -> Any:
            if broken:
                raise ValueError(broken.pop())
            return sample(*given)

        runner.runner.sample = fail
        (first,) = llm.generate(["Once"], GREEDY, use_tqdm=False)
        (second,) = llm.generate(["Once"], GREEDY, use_tqdm=False)
        assert first.outputs[0].finish_reason == "error"
        assert second.outputs[0].finish_reason == "length"


def test_the_suggested_memory_limit_is_enough() -> None:
    with pytest.raises(ConfigError) as refused:
        LLM("stories", memory_limit="100MiB", **PAIR)
    suggested = re.search(r"memory_limit = (\d+MiB)", str(refused.value))
    assert "in each of 2 processes" in str(refused.value) and suggested is not None
    with LLM("stories", memory_limit=suggested[1], **PAIR) as llm:
        llm.generate(["Once"], GREEDY, use_tqdm=False)


def test_bytes_of_the_cache_are_those_of_all_ranks() -> None:
    with LLM("stories", kv_cache_memory_bytes=1 << 20, **PAIR) as llm:
        plan = llm.loaded.memory
        assert 0 <= (1 << 19) - plan.kv < plan.block
