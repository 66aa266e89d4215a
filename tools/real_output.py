"""Runs the commands shown in the documents again and writes down what they say now.

    python tools/real_output.py [--only TEXT] [PAGE ...]

A fenced block marked `console` holds one command after `$ ` and its output; the output is replaced.
Commands run at the root, with the interpreter that runs this file; nothing but `flyweight` and
`python` may be shown.  With --only, commands without TEXT keep their output.
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


def run_command(command: str) -> str:
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


def refresh(page: Path, only: str = "") -> int:
    """Writes a page's outputs anew; how many there were."""
    count = 0

    def write(found: re.Match[str]) -> str:
        nonlocal count
        if only not in found[1]:
            return found[0]
        count += 1
        return f"```console\n$ {found[1]}\n{run_command(found[1])}\n```"

    text = BLOCK.sub(write, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    return count


def main() -> None:
    words = sys.argv[1:]
    only = words[1] if words[:1] == ["--only"] else ""
    given = [Path(page) for page in words[2 if only else 0 :]]
    for page in given or [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        print(f"{page.name}: {refresh(page, only)} commands")


if __name__ == "__main__":
    main()
