"""Runs the commands of docs/walk.md, one after another, and writes down what they say.

    python tools/walk.py [--check]

A block marked `shell` has commands after `$ `, whose further lines begin with `> `, and their
output, which is replaced.  Commands run in one new folder, which is also their HOME, with the
interpreter that runs this file; a command that fails, or a reply that is an error, ends the run.
Servers are stopped at the end.  With --check the page stays as it is.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "walk.md"
BLOCK = re.compile(r"^```shell\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)", re.M)
SPARED = ("XDG_CACHE_HOME", "FLYWEIGHT_CACHE", "FLYWEIGHT_API_KEY")  # would change the output


class WalkRunner:
    """Runs commands in a folder, with `flyweight` and `python3` on their path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / ".programs"
        programs.mkdir()
        python = shlex.quote(sys.executable)
        for name, words in (("flyweight", "-m flyweight.cli.main"), ("python3", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name not in SPARED}
        path = f"{programs}:{os.environ['PATH']}"
        self.environment = {**kept, "PATH": path, "HOME": str(folder), "COLUMNS": "100"}

    def run(self, command: str) -> str:
        """What a command prints on both streams."""
        plain = command.replace("\n> ", "\n")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", plain], cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode or '{"error":' in done.stdout:
            raise SystemExit(f"$ {command}\n{done.stdout}exit code {done.returncode}")
        shown = done.stdout.replace(str(self.folder), "~")
        return "\n".join(line.rstrip() for line in shown.splitlines()).strip("\n")

    def refresh(self, block: re.Match[str]) -> str:
        lines = ["```shell"]
        for found in COMMAND.finditer(block[1]):
            output = self.run(found[1])
            lines += [f"$ {found[1]}", *([output] if output else [])]
        return "\n".join([*lines, "```"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runner = WalkRunner(Path(folder))
        try:
            text = BLOCK.sub(runner.refresh, PAGE.read_text(encoding="utf-8"))
        finally:
            runner.run("flyweight stop --all || true")
    if "--check" in sys.argv[1:]:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
