"""The official clients that `dev` installs, each in its own process, over every endpoint they have.

`.ci/clients` runs these and others, each from its own environment.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from client_table import KEY, MODEL, SCRIPTS, served
from http_server import WAIT, Running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(tmp_path_factory.mktemp("locked")) as (running, _):
        yield running


@pytest.mark.parametrize("package", ["openai", "anthropic"])
def test_an_official_client(locked: Running, package: str) -> None:
    pytest.importorskip(package)
    script = str(SCRIPTS / f"{package}_client.py")
    words = [sys.executable, script, f"http://127.0.0.1:{locked.port}", MODEL, KEY]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr[-4000:]
