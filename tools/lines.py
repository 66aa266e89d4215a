"""Prints the lines of code of every room: a visible price for every feature.

    python tools/lines.py

Counts every line of the sources under src/ and native/ and of the tests, blank ones and comments
among them; generated and data files do not count.
"""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = {
    "src/flyweight": (".py",),
    "native": (".cpp", ".h"),
    "tests": (".py",),
    "tools": (".py",),
    "bench": (".py",),
}


def room(path: Path) -> str:
    """The folder a file belongs to: two levels below src, one elsewhere."""
    parts = path.relative_to(ROOT).parts
    depth = 3 if parts[0] == "src" else 2
    return "/".join(parts[: min(depth, len(parts) - 1)])


def count() -> tuple[Counter[str], Counter[str]]:
    """Lines and files of each room."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for tree, suffixes in TREES.items():
        for path in sorted((ROOT / tree).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                lines[room(path)] += len(path.read_text(encoding="utf-8").splitlines())
                files[room(path)] += 1
    return lines, files


def main() -> None:
    lines, files = count()
    for tree in TREES:
        rooms = [name for name in sorted(lines) if name == tree or name.startswith(tree + "/")]
        for name in rooms:
            print(f"{name:28} {files[name]:4} files {lines[name]:6} lines")
        total = sum(lines[name] for name in rooms)
        print(f"{tree + ', all':28} {sum(files[n] for n in rooms):4} files {total:6} lines\n")


if __name__ == "__main__":
    main()
