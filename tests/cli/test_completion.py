"""Shell completion: installed into a home of its own, and called by a real bash; `version`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
source "$HOME/.bashrc"
COMP_WORDS=({words} "{last}"); COMP_CWORD={at}
_flyweight_completion flyweight
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def bash(environment, tmp_path_factory):
    """`bash(script)` -> stdout, where completion is installed and `flyweight` is this package."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    home = tmp_path_factory.mktemp("completion")
    command = home / "bin" / "flyweight"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flyweight.cli.main "$@"\n')
    command.chmod(0o755)
    env = {**environment, "HOME": str(home), "PATH": f"{command.parent}{os.pathsep}/usr/bin:/bin"}
    env["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # a test's parent is no shell

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "bash completion installed" in run("flyweight --install-completion bash")
    assert (home / ".bashrc").exists()
    return run


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("flyweight ser", "serve"),
        ("flyweight run --temp", "--temperature"),
        ("flyweight serve --max-mod", "--max-model-len"),
        ("flyweight bench ker", "kernels"),
        ("flyweight serve stor", ""),
    ],
)
def test_bash_completes(bash, line: str, wanted: str) -> None:
    *words, last = line.split()
    requested = bash(ASK.format(words=" ".join(words), last=last, at=len(words)))
    assert requested.strip() == wanted


def test_the_script_can_be_shown(bash) -> None:
    assert "complete -o default -F _flyweight_completion flyweight" in bash(
        "flyweight --show-completion bash"
    )


def test_version_is_a_command_and_an_option(command) -> None:
    shown = command("version")
    assert shown.code == 0 and re.fullmatch(r"flyweight \d+\.\d+\.\d+\n", shown.out)
    assert command("--version").out == shown.out
    assert f'version = "{shown.out.split()[1]}"' in (
        Path(__file__).parents[2] / "pyproject.toml"
    ).read_text(encoding="utf-8")
