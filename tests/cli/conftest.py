"""A command line in this process, and one of its own."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from flyweight.cli.main import main
from hub_server import Hub, serving
from tiny_model import TEMPLATE, tiny_folder
from warm_commands import Commands, warmed

Command = Callable[..., SimpleNamespace]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command has a process of its own; what this one holds after a thousand tests would count
    in every memory plan.
    """
    for room in ("describe", "plan.machine"):
        monkeypatch.setattr(f"flyweight.{room}.measure_resident", lambda: 64 << 20)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that continues text."""
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template."""
    return tiny_folder(tmp_path_factory.mktemp("speaking") / "model", chat_template=TEMPLATE)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`command("run", ..., stdin=b"...")` -> code, out, err; without stdin there is a terminal."""

    def call(*words: object, stdin: bytes | None = None) -> SimpleNamespace:
        typed = io.TextIOWrapper(io.BytesIO(stdin or b""), encoding="utf-8")
        monkeypatch.setattr(typed, "isatty", lambda: stdin is None, raising=False)
        monkeypatch.setattr(sys, "stdin", typed)
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return SimpleNamespace(code=code, out=shown.out, err=shown.err)

    return call


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For a process of its own: this one's modules, and a home that is nobody's."""
    paths = os.pathsep.join(p for p in sys.path if p)
    home = str(tmp_path_factory.mktemp("home"))
    return {**os.environ, "PYTHONPATH": paths, "HOME": home, "COLUMNS": "80", "TERM": "xterm"}


@pytest.fixture
def process(environment: dict[str, str]) -> Command:
    """The same in a process of its own."""

    def call(*words: object, stdin: bytes = b"", code: str = "") -> SimpleNamespace:
        start = ["-c", code] if code else ["-m", "flyweight.cli.main"]
        done = subprocess.run(
            [sys.executable, *start, *map(str, words)],
            input=stdin,
            capture_output=True,
            env=environment,
            timeout=120,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        return SimpleNamespace(code=done.returncode, out=out, err=err)

    return call


@pytest.fixture(scope="session")
def serving_hub() -> Iterator[Hub]:
    with serving(Hub()) as running:
        yield running


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub") / "hf"


@pytest.fixture
def hub(serving_hub: Hub, home: Path) -> Hub:
    """The stand-in with nothing in it, and nothing in the cache."""
    serving_hub.forget()
    shutil.rmtree(home, ignore_errors=True)
    return serving_hub


@pytest.fixture(scope="session")
def hub_variables(environment: dict[str, str], serving_hub: Hub, home: Path) -> dict[str, str]:
    env = {k: v for k, v in environment.items() if not k.startswith("HF_")}
    return env | {"HF_HOME": str(home), "HF_ENDPOINT": serving_hub.endpoint, "HF_TOKEN": "secret"}


@pytest.fixture(scope="session")
def warm(hub_variables: dict[str, str]) -> Iterator[Callable[..., Commands]]:
    """Processes with the unpatched client in them, one for each choice of other variables."""
    with ExitStack() as processes:

        @cache
        def start(*also: tuple[str, str]) -> Commands:
            return processes.enter_context(warmed(hub_variables | dict(also)))

        yield start


@pytest.fixture
def client(hub: Hub, hub_variables: dict[str, str], warm: Callable[..., Commands]) -> Command:
    """`client("pull", ...)` -> code, out, err, with other variables (`also`).  In a process of its
    own where there is other code, or a `start` that is not waited for.
    """

    def call(*words: object, code: str = "", start: bool = False, **also: str) -> object:
        if not (code or start):
            return warm(*also.items())(*words)
        texts = list(map(str, words))
        command = [sys.executable, *(["-c", code] if code else ["-m", "flyweight.cli.main"])]
        pipe, env = subprocess.PIPE, hub_variables | also
        process = subprocess.Popen(command + texts, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        if start:
            return process
        out, err = process.communicate(timeout=120)
        return SimpleNamespace(code=process.returncode, out=out.decode(), err=err.decode())

    return call
