"""Importing the package is quick, pulls in nothing, and offers the public names."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flyweight

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_every_public_name_is_there() -> None:
    for name in flyweight.__all__:
        assert getattr(flyweight, name) is not None
    assert sorted(dir(flyweight)) == sorted(flyweight.__all__)
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        flyweight.LMM  # noqa: B018


def test_import_is_quick_and_light() -> None:
    """Quicker than the standard library's asyncio, in processor time: the clock would measure the
    neighbours.
    """
    code = (
        "import time; t = time.process_time(); import {}; "
        "print(time.process_time() - t); import sys; "
        "print(sorted({{'numpy', 'typer', 'tokenizers', 'jinja2', 'rich'}} & set(sys.modules)))"
    )
    seconds: dict[str, list[float]] = {"flyweight": [], "asyncio": []}
    for _ in range(5):  # the least: a core that is shared takes longer for the same
        for name, found in seconds.items():
            took, loaded = run(code.format(name)).splitlines()
            assert loaded == "[]"
            found.append(float(took))
    assert min(seconds["flyweight"]) < min(seconds["asyncio"]), seconds


def test_help_does_not_load_what_computes() -> None:
    code = (
        "import sys, flyweight.cli.main as m; m.main(['run', '--help']); "
        "print(sorted({'numpy', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    )
    assert run(code).splitlines()[-1] == "[]"


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert flyweight.__version__ == project["version"]


def test_type_checkers_may_read_the_package() -> None:
    assert (Path(flyweight.__file__).parent / "py.typed").exists()
