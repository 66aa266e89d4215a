"""`flyweight run` and `bench` with a model over two processes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from flyweight.bench import limits
from flyweight.cli.main import main
from flyweight.parallel import processes
from flyweight.parallel.nodes.messages import RankSetup

PAIR = ("-tp", "2")
# Int8 inputs turn the last digits of sums over ranks into other tokens where two are close.
ENGINE = ("--threads", "2", "--memory-limit", "4GiB", "--activations", "f32")
RUN = ("run", "Once upon a time", "--temperature", "0", "-n", "16", *ENGINE)
LATENCY = (
    "bench", "latency", "stories", "--input-len", "8", "--output-len", "3", "--batch-size", "1",
    "--num-iters", "2", "--num-iters-warmup", "0", *ENGINE,
)  # fmt: skip
Children = list["subprocess.Popen[bytes]"]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    """The ranks that commands of the test start, which end with it."""
    found: Children = []
    start = processes.start_rank

    def keep(setup: RankSetup) -> "subprocess.Popen[bytes]":
        found.append(start(setup))
        return found[-1]

    monkeypatch.setattr(processes, "start_rank", keep)
    yield found
    processes.end_processes(found)


def test_run_prints_the_text_of_one_process(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN]) == 0
    alone = capsys.readouterr().out
    assert len(alone.split()) > 8 and not children
    assert main([*RUN, *PAIR]) == 0
    assert capsys.readouterr().out == alone and len(children) == 1


def test_bench_measures_two_ranks(
    children: Children,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(limits, "LEAST_BYTES", 4 << 20)
    monkeypatch.setattr(limits, "REPEATS", 1)
    file = tmp_path / "figures.json"
    assert main([*LATENCY, *PAIR, "--output-json", str(file)]) == 0
    assert capsys.readouterr().out.startswith("Avg latency: ") and len(children) == 1
    assert len(json.loads(file.read_text())["latencies"]) == 2
