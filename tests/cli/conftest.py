"""A command line in this process, and one of its own."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flyweight.cli.main import main
from hub_server import Hub, serving
from tiny_model import TEMPLATE, tiny_folder

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


WARM = """
import contextlib, io, json, sys
from flyweight.cli.main import main
lines, answers, sys.stdin = sys.stdin, sys.stdout, None
for line in lines:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=answers, flush=True)
"""


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
def warm(hub_variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process with the unpatched client in it, which runs one command line after the other."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", WARM]
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=hub_variables, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def client(hub: Hub, hub_variables: dict[str, str], warm: subprocess.Popen[str]) -> Command:
    """`client("pull", ...)` -> code, out, err.  In a process of its own where there are other
    variables (`also`), other code, or a `start` that is not waited for.
    """

    def call(*words: object, code: str = "", start: bool = False, **also: str) -> object:
        texts = list(map(str, words))
        if not (code or start or also):
            assert warm.stdin is not None and warm.stdout is not None
            print(json.dumps(texts), file=warm.stdin, flush=True)
            done, out, err = json.loads(warm.stdout.readline())
            return SimpleNamespace(code=done, out=out, err=err)
        command = [sys.executable, *(["-c", code] if code else ["-m", "flyweight.cli.main"])]
        pipe, env = subprocess.PIPE, hub_variables | also
        process = subprocess.Popen(command + texts, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        if start:
            return process
        out, err = process.communicate(timeout=120)
        return SimpleNamespace(code=process.returncode, out=out.decode(), err=err.decode())

    return call
