"""A command line in this process, and one of its own."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flyweight.cli.main import main
from tiny_model import TEMPLATE, tiny_folder

Command = Callable[..., SimpleNamespace]


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
