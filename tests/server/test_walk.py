"""The walk of docs/walk.md, as it is written."""

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "walk.py"
PORT = 8000


@pytest.mark.long
def test_the_walk_works_as_written() -> None:
    with suppress(OSError), socket.create_connection(("127.0.0.1", PORT), 1):
        pytest.skip(f"port {PORT} is in use")
    ended = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [line.split()[2:4] for line in ended.stdout.splitlines() if "127.0.0.1:8000  " in line]
    loaded, unloaded = ["tiny", "loaded"], ["tiny", "unloaded"]
    assert [row for row in rows if row[0] == "tiny"] == [unloaded, loaded, unloaded, loaded]
    assert all(row[1] == "loaded" for row in rows if row[0] == "tales") and len(rows) == 8
