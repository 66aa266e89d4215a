"""Ranks that cannot start: one line that says why, exit code 2, and no process left."""

import subprocess
import sys
from pathlib import Path

import pytest

from flyweight.cli.main import main
from flyweight.config import Limits, Settings
from flyweight.errors import ConfigError
from flyweight.parallel import processes
from flyweight.parallel.numa import UNBOUND
from flyweight.parallel.processes import RankProcesses, RankSetup
from flyweight.parallel.sharding import RankPlace

LOADING = "import sys; sys.stdin.read()"
LOADED = """print('{"type": "report", "rank": 1}', flush=True); """ + LOADING
RANKS = 4
Children = list["subprocess.Popen[bytes]"]


def start_instead(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> Children:
    """Has ranks run these scripts, rank 1 the first.  The processes that are started."""
    children: Children = []

    def start(setup: RankSetup) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-S", "-c", scripts[setup.rank - 1]]
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(command, stdin=pipe, stdout=pipe))
        return children[-1]

    monkeypatch.setattr(processes, "start_rank", start)
    return children


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("", "rank 2 ended before it had loaded its part of the model"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "rank 2 ended before it had loaded its part of the model",
        ),
        (
            """print('{"type": "report", "rank": 2, "problem": "no memory"}')""",
            "rank 2: no memory",
        ),
        ("print('Bus error')", r"rank 2: it wrote b'Bus error\\n', which is no report"),
    ],
    ids=["ended", "killed", "failed", "garbage"],
)
def test_one_rank_that_fails_ends_all(
    monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    """Also those that have loaded, and those that still load."""
    children = start_instead(monkeypatch, LOADED, script, LOADING)
    places = [RankPlace(rank, RANKS, (range(2),)) for rank in range(RANKS)]
    settings = Settings.of(model="m", tensor_parallel_size=RANKS)
    limits = Limits(256, 1, 256, 16, 16), "f16"
    ranks = RankProcesses(settings, Path("m"), places, limits, [UNBOUND] * RANKS)
    with pytest.raises(ConfigError, match=f"^{problem}$"):
        ranks.wait()
    assert len(children) == RANKS - 1
    assert all(child.poll() is not None for child in children)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-tp", "4"], "4: the 6 query heads of a layer do not divide by it; allowed: 1, 2, 6"),
        (["-pp", "99"], "= 99 is out of range"),
        (["-tp", "2", "-pp", "40"], "pipeline_parallel_size = 40 is above the model's"),
        (["-tp", "2", "--memory-limit", "100MiB"], "in each of 2 processes"),
        (["-tp", "2"], "rank 1 ended before it had loaded its part of the model"),
    ],
    ids=["heads", "stages", "layers", "memory", "dead"],
)
def test_a_command_refuses_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    pytest.importorskip("torch", reason="the extra [distributed] is not installed")
    children = start_instead(monkeypatch, "")
    assert main(["run", "Once", *options]) == 2
    shown = capsys.readouterr()
    (line,) = [x for x in shown.err.splitlines() if " allowed in each of " not in x]  # not the plan
    assert line.startswith("error: ") and words in line
    assert shown.out == ""
    assert all(child.poll() is not None for child in children)
