"""Starts of a server with replicas that differ: one line that says why, exit code 2, and no process
left.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from flyweight import __version__
from process_tree import list_marked

SCRIPT = str(Path(__file__).with_name("local_replicas.py"))
WORDS = (
    "stories", "--port", "0", "--threads", "2", "--max-model-len", "256",
    "--memory-limit", "2GiB", "--replicas", "2",
)  # fmt: skip
MARK = "MARKED_BY_A_TEST"
OTHER = "fedcba9876543210"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"fingerprint": OTHER},
            f"a replica's model has the fingerprint {OTHER[:12]}, and not ",
        ),
        ({"version": "0.0.1"}, f"a replica runs flyweight 0.0.1, this server {__version__}"),
        ({"code": OTHER}, f"a replica has another build of flyweight {__version__}: {OTHER[:12]}"),
    ],
    ids=["fingerprint", "version", "build"],
)
def test_a_replica_that_differs_ends_the_start(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    mark, log = uuid4().hex, tmp_path / "log"
    variables = {**os.environ, "SECOND_REPLICA": json.dumps(changes), MARK: mark}
    with log.open("w") as stderr:
        server = subprocess.Popen([sys.executable, SCRIPT, *WORDS], stderr=stderr, env=variables)
    seen = set[int]()
    while server.poll() is None:
        seen |= list_marked(MARK, mark)
        time.sleep(0.02)
    assert server.returncode == 2 and list_marked(MARK, mark) == set()
    assert len(seen) >= 3, "the server and two engines"
    said = log.read_text().splitlines()
    assert [line for line in said if line.startswith("error: ")] == said[-1:]
    assert said[-1].startswith(f"error: {words}") and not any("Traceback" in x for x in said)
