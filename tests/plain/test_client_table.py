"""The table of clients, its scripts, the requests of applications and the pages of docs/clients."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from client_table import CLIENTS, SCRIPTS, Client

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "clients"
FRONT_DOORS = "tests/server/test_front_doors.py"
ROW = re.compile(r"^\| ([^|]+) \| (\d[\d.]*)[^|]* \| [^|]+ \| [^|]+ \| `(\S+)` \|$", re.M)


def test_every_script_has_a_client_and_every_client_a_script() -> None:
    assert {c.script for c in CLIENTS} == {p.name for p in SCRIPTS.glob("*_client.*")}


def test_the_document_lists_the_clients_with_their_scripts() -> None:
    rows = ROW.findall((PAGES / "README.md").read_text(encoding="utf-8"))
    assert [(name, script) for name, _, script in rows] == [(c.name, c.script) for c in CLIENTS]


def test_every_client_has_a_section() -> None:
    found = re.findall(r"^## (.+)$", (PAGES / "libraries.md").read_text(encoding="utf-8"), re.M)
    assert found == list(dict.fromkeys(c.name.partition(" (")[0] for c in CLIENTS))


def test_every_application_has_a_page_that_names_its_tests() -> None:
    """The index of the folder links to each of them."""
    requests = (ROOT / FRONT_DOORS).read_text(encoding="utf-8")
    names = set(re.findall(r'^    \("([^"/]+)", "/', requests, re.M))
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")}
    index = pages.pop("README.md")
    assert set(re.findall(r"\]\(([\w-]+\.md)[)#]", index)) == set(pages)
    del pages["libraries.md"]
    assert {f"{name.lower().replace(' ', '-')}.md" for name in names} == set(pages)
    assert [name for name, text in pages.items() if f"`{FRONT_DOORS}`" not in text] == []


@pytest.mark.parametrize("client", [c for c in CLIENTS if c.pip], ids=lambda c: c.name)
def test_the_documented_version_is_in_the_range_of_the_table(client: Client) -> None:
    rows = ROW.findall((PAGES / "README.md").read_text(encoding="utf-8"))
    (version,) = [found for name, found, _ in rows if name == client.name]
    wanted = Requirement(client.pip[0])
    assert wanted.name == client.package and wanted.specifier.contains(version)


@pytest.mark.parametrize("package", ["ai", "@ai-sdk/openai-compatible"])
def test_the_name_of_a_package_of_npm_has_no_range(package: str) -> None:
    assert Client("x", "x", npm=(f"{package}@>=2",)).package == package


def test_the_long_run_calls_them() -> None:
    assert re.search(r"^.*\.ci/clients\b", (ROOT / ".ci" / "full").read_text(), re.M)
