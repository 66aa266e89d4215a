"""Runs the commands shown in the documents again and writes down what they say now.

    python tools/real_output.py [PAGE ...]

A fenced block marked `console` holds one command after `$ ` and its output; the output is replaced.
Commands run at the root, with the interpreter that runs this file; nothing but `flyweight` and
`python` may be shown.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```console\n\$ (.+)\n(?:.*\n)*?```$", re.M)
COMMANDS = {
    "flyweight": [sys.executable, "-m", "flyweight.cli.main"],
    "python": [sys.executable],
}


def said(command: str) -> str:
    """What a command prints on both streams, without trailing blanks."""
    name, *words = shlex.split(command)
    width = os.environ | {"COLUMNS": "100"}
    run = subprocess.run(
        [*COMMANDS[name], *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=width,
        cwd=ROOT,
    )
    assert run.returncode in (0, 2), f"{command}: exit code {run.returncode}\n{run.stdout}"
    lines = [line.rstrip() for line in run.stdout.splitlines()]
    return "\n".join(lines).strip("\n")


def refresh(page: Path) -> int:
    """Writes a page's outputs anew; how many there were."""
    text = page.read_text(encoding="utf-8")
    text, count = BLOCK.subn(lambda m: f"```console\n$ {m[1]}\n{said(m[1])}\n```", text)
    page.write_text(text, encoding="utf-8")
    return count


def main() -> None:
    pages = [Path(p) for p in sys.argv[1:]] or [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        print(f"{page.name}: {refresh(page)} commands")


if __name__ == "__main__":
    main()
