"""Setting up: what the Makefile says where something is missing; hooks test the sources."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def make(tmp_path):
    """`make(python, path)`: the line `make` stops with before it makes a venv."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "native").mkdir()
    (tmp_path / "src").mkdir()

    # This may run under a `make test` with settings of its own.
    outside = {
        name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"
    }

    def call(python: str, path: str) -> str:
        done = subprocess.run(
            [shutil.which("make"), ".venv/bin/python", f"PYTHON={python}"],
            cwd=tmp_path,
            env={**outside, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2 and not (tmp_path / ".venv").exists()
        (line,) = done.stdout.splitlines()
        return line

    return call


def test_missing_headers_are_named(make, tmp_path) -> None:
    fake = tmp_path / "python"
    bare = "import sysconfig; sysconfig.get_path = lambda name: '/nowhere'"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} "$1" "{bare}; $2"\n')
    fake.chmod(0o755)
    assert make(str(fake), os.environ["PATH"]).endswith("apt install python3-dev")


def test_a_missing_compiler_is_named(make, tmp_path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "find").symlink_to(shutil.which("find"))
    fake = tools / "python"  # has everything, so that only the compiler is missing
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    assert make(str(fake), str(tools)).endswith("apt install g++")


def test_hooks_check_the_sources() -> None:
    """Not the copy that is installed in .venv."""
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^ *entry: (.+)$", text, re.M)
    reading = [entry for entry in entries if not entry.startswith("ruff ")]
    assert len(reading) == 3 and all(e.startswith("env PYTHONPATH=src ") for e in reading)
