"""Type-checks the Python in README.md and docs/ with mypy and pyright, as a user's editor would.

    python tools/check_snippets.py

The blocks of a page are one program, in order; a block that awaits is the body of a coroutine.
`tests/api/typed_calls.py` holds calls that must be errors, each marked `# error`, and calls that
must not be.  Exits with 1 and the places where a checker says otherwise.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CALLS = ROOT / "tests" / "api" / "typed_calls.py"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
Place = tuple[str, int]


def program(page: str) -> str:
    """A page's blocks at the lines where they stand."""
    lines = [""] * (page.count("\n") + 1)
    for found in BLOCK.finditer(page):
        first = page.count("\n", 0, found.start()) + 1
        block = found[1].splitlines()
        if awaits(found[1]):
            lines[first - 1] = f"async def block_{first}() -> None:"
            block = [f"    {line}" for line in block]
        lines[first : first + len(block)] = block
    return "\n".join(lines) + "\n"


def awaits(block: str) -> bool:
    try:
        ast.parse(block)
        compile(block, "block", "exec")
    except SyntaxError:
        return True
    return False


def mypy(files: list[Path]) -> dict[Place, str]:
    """What mypy says, by file and line."""
    command = [sys.executable, "-m", "mypy", "--config-file=", "--python-version=3.11",
               "--ignore-missing-imports", "--no-error-summary", *map(str, files)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.M)
    assert found or done.returncode == 0, done.stdout + done.stderr
    return {(Path(file).name, int(line)): words for file, line, words in found}


def pyright(files: list[Path]) -> dict[Place, str]:
    """What pyright says, by file and line."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1): one["message"]
        for one in found
        if one["severity"] == "error" and one.get("rule") != "reportMissingImports"
    }


def main() -> int:
    wanted = {
        (CALLS.name, number)
        for number, line in enumerate(CALLS.read_text().splitlines(), 1)
        if line.endswith("# error")
    }
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        files = [CALLS]
        for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
            text = page.read_text(encoding="utf-8")
            if BLOCK.search(text):
                name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
                files.append(Path(folder) / f"{name.replace('-', '_').lower()}.py")
                files[-1].write_text(program(text), encoding="utf-8")
        for checker in (mypy, pyright):
            found = checker(files)
            for place in sorted(found.keys() - wanted):
                wrong.append(f"{checker.__name__}: {place[0]}:{place[1]}: {found[place]}")
            for place in sorted(wanted - found.keys()):
                wrong.append(
                    f"{checker.__name__}: {place[0]}:{place[1]}: no error where one is due"
                )
    print("\n".join(wrong) or f"{len(files) - 1} pages and {CALLS.name}: as they should be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
