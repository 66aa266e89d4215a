"""bench/ray_hop.py runs, and times what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "ray_hop.py"


def test_each_hop_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    words = ["--calls", "5", "--streams", "2", "--seconds", "0.2", "--json", str(path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    counts = {what: row["count"] for what, row in found["milliseconds"].items()}
    assert counts == {"first frame": 5, "answer": 5, "token": 20}
    assert all(0 < row["p50"] <= row["p99"] for row in found["milliseconds"].values())
    costs = found["us_per_token"]
    assert 0 < costs["event loop"] <= costs["process"]
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == [
        "first",
        "answer",
        "token",
    ]
