"""The server against its own OpenAPI document: whatever the document allows is answered as it says,
and what it does not is refused.  That every operation was requested is counted by the server
itself: a budget of time that ends before the first request would let everything pass.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyweight.server.apis.routes import ROUTES
from http_server import Running

pytest.importorskip("schemathesis", reason="could not import schemathesis")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_schema_conformance", "negative_data_rejection")  # fmt: skip
FEW = 2  # random cases of an operation
HANGS = 2700  # seconds, for one run
# With --long: cases of an operation by phases.  None has --max-time, which is not a bound: random
# cases go on until it is used up, of whichever operations come first.
LONG = {"examples,coverage": 100, "fuzzing": 100, "stateful": 50}

Counts = dict[tuple[str, str], float]


def requested(server: Running) -> Counts:
    """Requests by method and route, as the server has counted them."""
    found: Counts = {}
    for family in text_string_to_metric_families(server.get("/metrics").body.decode()):
        for row in family.samples:
            if row.name == "http_requests_total":
                key = (row.labels["method"], row.labels["handler"].replace(":path}", "}"))
                found[key] = found.get(key, 0) + row.value
    return found


def operations(server: Running) -> list[tuple[str, str]]:
    """Methods and routes of the document."""
    paths = server.get("/openapi.json").json["paths"]
    return [(method.upper(), path) for path, item in paths.items() for method in item]


def bodies() -> set[tuple[str, str]]:
    """Operations that have something to draw."""
    return {(entry.method, entry.path) for entry in ROUTES if entry.body is not None}


def fuzz(server: Running, folder: Path, phases: str, cases: int) -> Counts:
    """What was requested of each operation; fails with schemathesis' words where it finds
    something.
    """
    before = requested(server)
    command = [
        sys.executable, "-m", "schemathesis.cli", "run",
        f"http://127.0.0.1:{server.port}/openapi.json", "--mode", "all", "--phases", phases,
        "--max-examples", str(cases), "--seed", "7", "--generation-deterministic",
        "--checks", ",".join(CHECKS), "--request-timeout", "120", "--no-color",
        "--suppress-health-check", "all",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=HANGS)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    after = requested(server)
    return {key: n - before.get(key, 0) for key, n in after.items()}


def test_schemathesis_finds_nothing(at_length: bool, talker: Running, tmp_path: Path) -> None:
    """A few random cases of every operation; all phases with --long."""
    document = operations(talker)
    assert len(document) > 25, "the document has lost its operations"
    for phases, cases in LONG.items() if at_length else [("fuzzing", FEW)]:
        found = fuzz(talker, tmp_path, phases, cases)
        if phases != "stateful":  # which is about those with links
            few = {one: found.get(one, 0) for one in document}
            wanted = {one: FEW if one in bodies() else 1 for one in document}
            assert {one: n for one, n in few.items() if n < wanted[one]} == {}, "too few requests"
    assert talker.get("/health").status == 200
    talker.until(talker.empty)
