"""The server against its own OpenAPI document: whatever the document allows is answered as it says,
and what it does not is refused.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from http_server import Running

pytest.importorskip("schemathesis", reason="could not import schemathesis")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_schema_conformance", "negative_data_rejection")  # fmt: skip


def test_schemathesis_finds_nothing(
    request: pytest.FixtureRequest, talker: Running, tmp_path: Path
) -> None:
    """All phases with --long, else a moment of examples and of random ones."""
    long = request.config.getoption("--long")
    document = f"http://127.0.0.1:{talker.port}/openapi.json"
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", document, "--mode", "all",
        "--phases", "examples,coverage,fuzzing,stateful" if long else "examples,fuzzing",
        "--max-examples", "100" if long else "5", "--max-time", "600" if long else "20",
        "--seed", "7", "--generation-deterministic", "--checks", ",".join(CHECKS),
        "--request-timeout", "120", "--no-color", "--suppress-health-check", "all",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=3000)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert talker.get("/health").status == 200
    talker.until(talker.empty)
