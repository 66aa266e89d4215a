"""bench/parallel.py: ranks beside one process, through shared memory and over gloo."""

import os
import sys

import pytest
from test_suite import script

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from flyweight.parallel import host_exchange

WORDS = ("stories", "--ways", "2x1", "--rounds", "1", "--prompt", "16", "--tokens", "4")


@pytest.mark.parametrize(
    ("more", "name"),
    [
        pytest.param((), "tp 2 pp 1", marks=pytest.mark.long),
        (("--gloo",), "tp 2 pp 1, gloo"),
    ],
)
def test_ranks_are_measured(
    more: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, path = host_exchange._make_folder, os.environ.get("PYTHONPATH")
    monkeypatch.setattr(sys, "argv", ["parallel.py", *WORDS, *more])
    script("parallel").main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "| tp" in line]
    assert [row[0].removeprefix("| ") for row in rows] == ["tp 1 pp 1", name]
    assert all(len(row) == 10 and float(row[3]) > 0 for row in rows)
    assert rows[0][8].split() == ["0.0", "%"] != rows[1][8].split(), "decode: collectives"
    assert (host_exchange._make_folder, os.environ.get("PYTHONPATH")) == (made, path)
