"""What a package index and an installer read: pyproject.toml's metadata, its licence files, and
README.md as an index shows it.
"""

import ast
import re
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import flyweight

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)]+)\)")
CODE = {".py", ".pyi", ".so", ".typed"}  # the project's own, under LICENSE
OWN_PAGE = ROOT / "src/flyweight/server/page"  # likewise: a web page without foreign scripts
OWN_TABLES = {  # data of ours, under our own licence
    "src/flyweight/planning/devices.json",
    "src/flyweight/prove/reviews.jsonl",
}
LICENCES = {  # each licence of the expression, and a file that carries it
    "Apache-2.0": "LICENSE",
    "CDLA-Sharing-1.0": "src/flyweight/assets/LICENSE",
    "MIT": "native/LICENSE-robin-map",
    "BSD-3-Clause": "native/LICENSE-nanobind",
}


def indexed() -> str:
    """README.md as the build writes it into the metadata."""
    text = README
    for rule in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    return text


def licence_files() -> list[Path]:
    return [path for glob in PROJECT["license-files"] for path in sorted(ROOT.glob(glob))]


def test_every_link_of_the_index_page_leads_to_a_file_of_the_repository() -> None:
    repository = PROJECT["urls"]["Repository"]
    base = repository + "/blob/main/"
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/") + "/main/"
    headings = {
        re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-")
        for line in re.findall(r"^#+ (.+)$", README, re.M)
    }
    links = LINK.findall(indexed())
    assert len(links) > 30
    for link in links:
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif link.startswith(base):
            assert (ROOT / link.removeprefix(base).partition("#")[0]).exists(), link
        elif link.startswith(raw):
            assert (ROOT / link.removeprefix(raw)).is_file(), link
        else:
            assert link.startswith("https://"), link


def test_pictures_of_the_index_page_are_links_to_files_not_to_pages() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", indexed())
    assert len(pictures) >= 2
    assert all(link.startswith("https://raw.githubusercontent.com/") for link in pictures)


def test_project_urls_are_in_one_repository() -> None:
    urls = PROJECT["urls"]
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    for url in urls.values():
        path = re.sub(r"/(tree|blob)/main/", "", url.removeprefix(urls["Repository"]))
        assert not path or path == "/issues" or (ROOT / path).exists(), url


def test_readme_begins_with_the_install_command() -> None:
    blocks = re.findall(r"^```\n(.*?)^```", README, re.M | re.S)
    assert blocks[0].splitlines()[0] == "pip install flyweight"
    assert [line.split("  ")[0] for line in blocks[1].splitlines()] == ["make demo", "make test"]
    assert README.index("## ") > README.index(blocks[1]), "both come before the first section"


def test_each_licence_of_the_expression_has_its_file() -> None:
    assert set(PROJECT["license"].split(" AND ")) == set(LICENCES)
    carried = {path.relative_to(ROOT).as_posix() for path in licence_files()}
    assert set(LICENCES.values()) <= carried
    begins = {name: (ROOT / file).read_text("utf-8")[:4000] for name, file in LICENCES.items()}
    assert "Apache License" in begins["Apache-2.0"]
    assert "Community Data License Agreement – Sharing – Version 1.0" in begins["CDLA-Sharing-1.0"]
    assert begins["MIT"].startswith("MIT License")
    assert "Redistributions in binary form" in begins["BSD-3-Clause"]


@pytest.mark.parametrize("glob", PROJECT["license-files"])
def test_each_pattern_of_license_files_matches(glob: str) -> None:
    """Builds refuse a pattern without a match."""
    assert list(ROOT.glob(glob))


def test_files_in_the_package_that_are_not_code_have_a_licence_next_to_them() -> None:
    folders = {path.parent for path in licence_files()}
    strays = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src" / "flyweight").rglob("*")
        if path.is_file() and path.suffix not in CODE and "__pycache__" not in path.parts
        and path.parent != OWN_PAGE
        and not {path.parent, path.parent.parent} & folders
    ]  # fmt: skip
    assert set(strays) == OWN_TABLES


def test_nothing_that_a_build_needs_is_left_out_of_the_source_archive() -> None:
    out = PYPROJECT["tool"]["scikit-build"]["sdist"]["exclude"]
    needed = {"README.md", "pyproject.toml", "CMakeLists.txt"}
    needed |= {path.relative_to(ROOT).as_posix() for path in licence_files()}
    needed |= set(re.findall(r"native/[\w./-]+", (ROOT / "CMakeLists.txt").read_text("utf-8")))
    for path in sorted(needed - {p for p in needed if p.startswith("native/tests")}):
        parts = ("/" + path).split("/")
        heads = {"/".join(parts[: i + 1]) for i in range(1, len(parts))} | {parts[-1]}
        assert not any(fnmatch(head, glob) for head in heads for glob in out), path


def test_ci_builds_its_wheel_from_the_source_archive() -> None:
    """So a file that the archive lacks fails there."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.search(r"-m build --sdist --outdir \"\$work/sdist\"", script)
    assert re.search(r"pip\" -q wheel .* \"\$work\"/sdist/\*\.tar\.gz", script)


def test_version_and_pythons_agree() -> None:
    assert PROJECT["version"] == flyweight.__version__
    said = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if c.count("3.")}
    assert said == {"3.11", "3.12", "3.13"} and PROJECT["requires-python"] == ">=3.11"


EXTRAS = (
    "ops/cuda/",
    "/training/",
    "parallel/comm.py",
    "parallel/device_comm.py",
    "parallel/ray_",
    "batch/beam.py",
)  # places of optional dependencies


def test_everything_the_package_imports_is_a_dependency() -> None:
    """At the top of a module: what is imported later may be optional."""
    names = {re.split(r"[>=<; \[]", one)[0].lower() for one in PROJECT["dependencies"]}
    names = {name.replace("_", "-") for name in names}
    owners = packages_distributions()
    missing = set()
    for path in (ROOT / "src" / "flyweight").rglob("*.py"):
        if path.name in ("peer_child.py", "harness.py"):  # in a peer's Python; with the extra eval
            continue
        if any(part in path.as_posix() for part in EXTRAS):
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            found = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found = [str(node.module)]
            for top in {name.split(".")[0] for name in found} - set(sys.stdlib_module_names):
                dists = {dist.lower().replace("_", "-") for dist in owners.get(top, [top])}
                dists |= {"pydantic"} if top == "pydantic_core" else set()
                if top != "flyweight" and not dists & names:
                    missing.add(f"{path.name}: {top}")
    assert missing == set()
