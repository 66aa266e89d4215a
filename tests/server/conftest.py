"""One server for the tests that only ask, and one process for the starts that are refused."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import chat_model
from browser import CHROMIUM, FEEDER, launched, opened
from http_server import Running, started
from passports import stamp

# Runs one command line after the other: what all processes wrote to stderr, and the exit code.
COMMANDS = """
import json, os, sys, tempfile
from flyweight.cli.main import main
for line in sys.stdin:
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        code = main(json.loads(line))
        sys.stderr.flush()
        said.seek(0)
        print(json.dumps([code, said.read().decode()]), flush=True)
"""


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """The model inside, with nothing set but time for grammars on a busy machine."""
    with started("--schema-compile-timeout", "60") as running:
        yield running


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same with a chat template and a quality passport."""
    path = chat_model.write(tmp_path_factory.mktemp("talker") / "talker.gguf")
    stamp(path)
    with started(str(path), "--max-model-len", "512") as running:
        yield running


@pytest.fixture(scope="session")
def lenient() -> Iterator[Running]:
    with started("--ignore-unknown-fields") as running:
        yield running


@pytest.fixture(scope="session")
def commands() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported what a command needs, and waits for command lines."""
    words, pipe = [sys.executable, "-c", COMMANDS], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def refusal(commands: subprocess.Popen[str]) -> Callable[..., str]:
    """`refusal("--port", "0", ...)`: what `flyweight serve` says that is refused."""

    def call(*words: str) -> str:
        assert commands.stdin is not None and commands.stdout is not None
        print(json.dumps(["serve", *words]), file=commands.stdin, flush=True)
        code, said = json.loads(commands.stdout.readline())
        assert code == 2, said
        # The memory plan and progress may be printed while the refusal is on its way.
        lines = [
            line
            for line in said.splitlines()
            if " allowed (weights " not in line and not line.startswith("loading: ")
        ]
        assert lines and all(line.startswith("error: ") for line in lines), said
        return str(said)

    return call


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """It ends with its module: while it runs, no test of this process can use asyncio."""
    pytest.importorskip("playwright", reason="could not import playwright")
    if not CHROMIUM:
        pytest.skip("needs chromium")
    with launched() as found:
        yield found


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """A tab with the page of the server without a key."""
    with opened(browser, f"http://127.0.0.1:{server.port}/") as tab:
        tab.wait_for_selector("#model option", state="attached")
        yield tab


@pytest.fixture
def fed(page: Any) -> Any:
    """The same, with answers that the test writes."""
    page.add_init_script(FEEDER)
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    return page
