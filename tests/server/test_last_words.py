"""A test whose server dies shows what it said: the suite's own report, of a suite of one test.

Its server is Python's, which starts sooner than ours.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIES = '''
import pytest
from http_server import running

SERVER = """
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
server = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
print(f"http://127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
server.serve_forever()
"""

@pytest.fixture(scope="module")
def hasty():
    with running(["-c", SERVER], {}) as server:
        yield server

def test_it(hasty):
    hasty.get("/nowhere")
    hasty.until(lambda: any("nowhere" in line for line in hasty.said))
    hasty.process.kill()
    hasty.process.wait()
    hasty.get("/health")
'''


def test_the_report_of_a_failure_has_its_servers_log(tmp_path: Path) -> None:
    (tmp_path / "test_dies.py").write_text(DIES)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--tb=short",
         "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])},
        timeout=300,
    )  # fmt: skip
    assert "1 failed" in run.stdout, run.stdout + run.stderr
    assert "has ended with -9" in run.stdout and '"GET /nowhere HTTP/1.1" 404' in run.stdout
