"""The official clients, each in a process of its own, over every endpoint they have.

FLYWEIGHT_CLIENT_PYTHON names another Python, with another version of a client (the 1.x line of
openai's); NODE_PATH a node_modules with `openai`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

import chat_model
from http_server import WAIT, Running, started

CLIENTS = Path(__file__).parents[1] / "clients"
OTHER = os.environ.get("FLYWEIGHT_CLIENT_PYTHON", "")
NODE_PATH = os.environ.get("NODE_PATH", "")
KEY = "a-key-of-the-tests"


TOOLED = "{% for t in tools or [] %}<tool> {{ t | tojson }}\n{% endfor %}" + chat_model.TEMPLATE
WORDS = (
    "--api-key", KEY, "--served-model-name", "talker", "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes", "--max-num-seqs", "4", "--max-queued-requests", "4",
    "--ping-seconds", "0.01",  # no client may be put off by a ping, wherever it comes
)  # fmt: skip
SLOW = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=2"}  # a full queue lasts


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that wants a key, takes tools and has little room."""
    path = chat_model.write(tmp_path_factory.mktemp("locked") / "talker.gguf", TOOLED)
    with started(str(path), *WORDS, **SLOW) as running:
        yield running


def address(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr[-4000:]


def test_openai(locked: Running) -> None:
    if find_spec("openai") is None:
        pytest.skip("the package openai is not installed")
    run(sys.executable, str(CLIENTS / "openai_client.py"), address(locked), KEY)


def test_another_openai(locked: Running) -> None:
    if not OTHER:
        pytest.skip("FLYWEIGHT_CLIENT_PYTHON names no other Python")
    run(OTHER, str(CLIENTS / "openai_client.py"), address(locked), KEY)


def test_openai_of_npm(locked: Running) -> None:
    node = which("node")
    if node is None or not (Path(NODE_PATH) / "openai").is_dir():
        pytest.skip("node, or the npm package openai below NODE_PATH, is not installed")
    run(node, str(CLIENTS / "openai_client.mjs"), address(locked), KEY)


def test_anthropic(locked: Running) -> None:
    if find_spec("anthropic") is None:
        pytest.skip("the package anthropic is not installed")
    run(sys.executable, str(CLIENTS / "anthropic_client.py"), address(locked), "talker", KEY)
