"""No module imports itself through others, type-checking and function-level imports included."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of the package that a file names in any import statement."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other: what is left when leaves are removed repeatedly."""
    left = {name: targets - {name} for name, targets in graph.items()}
    while True:
        leaves = {name for name, targets in left.items() if not targets & left.keys()}
        sources = left.keys() - set().union(*(left[name] for name in left), set())
        if not leaves | sources:
            return [[name, *sorted(left[name] & left.keys())] for name in sorted(left)]
        left = {name: left[name] for name in left.keys() - leaves - sources}


def test_no_module_imports_itself_through_others() -> None:
    paths = {module_name(path): path for path in sorted((SRC / "flyweight").rglob("*.py"))}
    public = {"flyweight"}  # loads its names on first use
    names = paths.keys() - public
    graph = {name: set(imports(paths[name], set(names))) for name in names}
    assert cycles(graph) == []


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert cycles(graph) == [["b", "c"], ["c", "b"]]


def test_the_architecture_page_has_the_layers_of_the_contract() -> None:
    """Rows of the table, from the top, are the layers that import-linter checks."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    first = contracts["tool"]["importlinter"]["contracts"][0]
    layers = [set(re.findall(r"flyweight\.(\w+)", one)) for one in first["layers"]]
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.split("| packages and modules |", 1)[1].split("\n\n", 1)[0]
    rows = [set(re.findall(r"`(\w+)`", row)) for row in re.findall(r"\| \d+ \| (.*) \|", table)]
    assert rows == layers
