"""The house rules as tests: the package map, docstrings, lengths, names, who may import what, who
reads the environment.

What import-linter checks in CI (pyproject.toml) is not repeated here, except the two walls that
matter most.
"""

import ast
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "flyweight"
MODULES = sorted(SOURCE.rglob("*.py"))
NATIVE = sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in (".cpp", ".h"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TOOLS = sorted(p for folder in ("tools", "bench", "fuzz") for p in (ROOT / folder).rglob("*.py"))

MOST_LINES, MOST_KERNEL_LINES, MOST_FUNCTION, MOST_TRITON = 400, 500, 60, 160
DRAWERS = {"utils", "util", "helper", "helpers", "common", "misc", "manager", "handler", "impl"}
STANDARD_ONLY = (
    "engine/scheduler", "engine/sequence", "engine/step", "engine/metrics", "kv/blocks",
    "routing/handoff", "routing/keys", "routing/router",
    "types", "sampling_params", "inputs", "outputs", "spec", "config", "errors",
)  # fmt: skip
HEAVY = {"torch", "triton", "transformers"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass
class Outline:
    """What the rules read of a module: imports wherever they stand, functions with the lines of
    their bodies, names of classes.
    """

    documented: bool
    imports: list[str] = field(default_factory=list)
    functions: list[tuple[str, int]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)


@cache
def outline(path: Path) -> Outline:
    module = ast.parse(path.read_text(encoding="utf-8"))
    found = Outline(bool(ast.get_docstring(module)))
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found.imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or SOURCE not in path.parents, "imports are written out in full"
            found.imports.append(str(node.module))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.body[0].lineno + 1
            found.functions.append((node.name, length))
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
    return found


def mapped_paths() -> list[str]:
    """The first column of the package map."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## Package map", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.M)


def test_the_package_map_is_complete_and_true() -> None:
    paths = mapped_paths()
    missing = [p for p in paths if not (ROOT / p).exists()]
    modules = [name(p) for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"]
    modules += [name(p) for p in SOURCE.glob("*.py")]
    assert len(paths) > 20
    assert missing == []
    assert [one for one in modules if one not in {p.rstrip("/") for p in paths}] == [], (
        "modules that are not on the map"
    )


def test_documents_link_to_files_that_exist() -> None:
    dead = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                dead.append(f"{name(page)}: {target}")
    assert dead == []


def test_every_decision_has_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for number, page in enumerate(pages, 1):
        assert page.read_text(encoding="utf-8").startswith(f"# {number}. "), page.name


def test_every_module_opens_with_a_docstring() -> None:
    assert [name(p) for p in [*MODULES, *TOOLS, *TESTS] if not outline(p).documented] == []


def test_every_native_file_opens_with_a_comment() -> None:
    """Its own, or its header's."""
    reported = [p for p in NATIVE if not (p.suffix == ".cpp" and p.with_suffix(".h").exists())]
    assert [name(p) for p in reported if not p.read_text(encoding="utf-8").startswith("//")] == []


def test_files_are_short() -> None:
    def long(paths: list[Path], most: int) -> dict[str, int]:
        sizes = {name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in paths}
        return {p: n for p, n in sizes.items() if n > most}

    assert long([*MODULES, *TOOLS, *TESTS], MOST_LINES) == {}
    assert long(NATIVE, MOST_KERNEL_LINES) == {}


def test_functions_are_short() -> None:
    """A command's function may be longer by its argument table: only its body counts."""
    found = {}
    for path in MODULES:
        for function, length in outline(path).functions:
            if length > (MOST_TRITON if "cuda/kernels/" in name(path) else MOST_FUNCTION):
                found[f"{name(path)}:{function}"] = length
    assert found == {}


def test_there_are_no_drawers() -> None:
    """A module has a name that says what it does; not utils, common and the like."""
    places = [*MODULES, *NATIVE, *TOOLS, *TESTS]
    assert [name(p) for p in places if DRAWERS & set(re.split(r"[/_.]", name(p).lower()))] == []
    classes = [
        f"{name(p)}: {found}"
        for p in MODULES
        for found in outline(p).classes
        if re.search(r"(Manager|Handler|Helper|Utils?|Impl|Mixin)$", found)
        and found != "FlyweightModelHandler"  # Apache Beam's term
    ]
    assert classes == []


@pytest.mark.parametrize("module", STANDARD_ONLY)
def test_what_must_need_nothing_needs_nothing(module: str) -> None:
    """Standard library only, through everything of ours that it imports."""
    seen: set[str] = set()
    waiting = ["flyweight." + module.replace("/", ".")]
    foreign = set()
    while waiting:
        dotted = waiting.pop()
        if dotted in seen:
            continue
        seen.add(dotted)
        path = ROOT / "src" / Path(*dotted.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for found in outline(file).imports:
            top = found.split(".")[0]
            if top == "flyweight":
                waiting.append(found)
            elif top not in sys.stdlib_module_names:
                foreign.add(f"{dotted} imports {found}")
    assert foreign == set()


def test_nothing_imports_torch() -> None:
    """But the process of a peer, which other interpreters run, the CUDA backend, training, and the
    collectives of several ranks.
    """
    foreign = ("ops/cuda/", "flyweight/training/", "peer_child.py", "parallel/comm.py",
               "parallel/device_comm.py")  # fmt: skip
    strays = [
        f"{name(path)} imports {found}"
        for path in MODULES
        if not any(part in path.as_posix() for part in foreign)
        for found in outline(path).imports
        if found.split(".")[0] in HEAVY
    ]
    assert strays == []


def test_the_hub_client_stays_in_its_module() -> None:
    strays = [
        name(path)
        for path in MODULES
        if not path.relative_to(SOURCE).as_posix().startswith("weights/hub/")
        and any(found.split(".")[0] == "huggingface_hub" for found in outline(path).imports)
    ]
    assert strays == []


def test_only_config_reads_the_environment() -> None:
    reads = re.compile(r"\bos\.(environ|getenv|putenv)|from os import .*(environ|getenv)")
    allowed = ("config.py", "ray_access.py")  # Ray's authentication is set by variables alone
    strays = [
        name(p)
        for p in MODULES
        if p.name not in allowed and reads.search(p.read_text(encoding="utf-8"))
    ]
    assert strays == []
    assert [
        name(p) for p in NATIVE if re.search(r"\bgetenv\b", p.read_text(encoding="utf-8"))
    ] == []


def test_only_bindings_know_python() -> None:
    """Kernels take pointers, sizes and a pool."""
    foreign = re.compile(r"#include\s*[<\"](Python\.h|nanobind|numpy|torch)")
    strays = [
        name(p)
        for p in NATIVE
        if "bindings" not in p.parts and foreign.search(p.read_text(encoding="utf-8"))
    ]
    assert strays == []


def test_committed_test_data_is_small() -> None:
    assert (
        sum(p.stat().st_size for p in (ROOT / "tests" / "data").rglob("*") if p.is_file())
        <= 18 << 20
    )


def test_test_files_have_names_of_their_own() -> None:
    """Without packages, two of one name cannot be collected together."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
