"""The page at `/` without a browser: its routes, its policy, and what its files refer to."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight.server.apis import page
from http_server import Running

FOLDER = Path(str(page.FOLDER))
FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
LARGEST = 120_000  # bytes of all files
READABLE = 4.5  # contrast of text and background: WCAG 2.1, level AA


def referred(name: str) -> set[str]:
    """The files that a file loads."""
    text = FILES[name]
    if name == page.INDEX:
        links = re.findall(r'<(?:link|script)[^>]+(?:href|src)="([^"]+)"', text)
        assert all(link.startswith("page/") for link in links)
        return {link.removeprefix("page/") for link in links}
    if name.endswith(".js"):
        found = re.findall(r'^import .* from "([^"]+)";$', text, re.M)
        assert all(path.startswith("./") for path in found), name
        return {path.removeprefix("./") for path in found}
    return set()


def palettes() -> Iterator[dict[str, str]]:
    """The colours of the light and of the dark page."""
    colours: dict[str, str] = {}
    for block in re.findall(r":root[^{]*{(.*?)}", FILES["theme.css"], re.S):
        colours = {**colours, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))}
        yield colours


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_page_and_its_files_are_served_with_a_strict_policy(server: Running) -> None:
    for name in ("", *(f"page/{file}" for file in page.list_files())):
        got = server.get(f"/{name}")
        assert got.status == 200, name
        policy = got.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert got.headers["x-content-type-options"] == "nosniff"
        kind = page.KINDS[name.rsplit(".", 1)[1] if name else "html"]
        assert got.headers["content-type"].startswith(kind), name
        assert got.body.decode() == FILES[name.removeprefix("page/") or page.INDEX]


def test_every_file_has_a_route_and_is_loaded() -> None:
    found, waiting = set(), [page.INDEX]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(referred(name))
    assert found == set(FILES)
    assert {entry.path for entry in page.make_routes()} == {
        "/", *(f"/page/{name}" for name in FILES if name != page.INDEX)
    }  # fmt: skip


def test_only_files_of_the_folder_are_served(server: Running) -> None:
    for path in ("/page/", "/page/index.html", "/page/../app.py", "/page/%2e%2e/app.py", "/page/x"):
        assert server.get(path).status == 404, path


def test_files_name_no_other_server() -> None:
    for name, text in FILES.items():
        named = set(re.findall(r"\bhttps?://[\w.]+[\w/]*", text))
        assert named <= {"http://www.w3.org/2000/svg"}, name  # the name of a kind of elements
        assert not re.search(r"@import|url\(", text), name


def test_scripts_make_no_html_from_text() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|"
        r"srcdoc|DOMParser|createContextualFragment|setHTML|import\("
    )
    assert [name for name, text in SCRIPTS.items() if forbidden.search(text)] == []
    assert not re.search(r"\son\w+=|style=|<script(?![^>]*src=)", FILES[page.INDEX])


def test_elements_that_scripts_look_for_are_in_the_page() -> None:
    ids = re.findall(r'\bid="([^"]+)"', FILES[page.INDEX])
    assert len(ids) == len(set(ids))
    wanted = {id for text in SCRIPTS.values() for id in re.findall(r'\bfind\("([^"]+)"\)', text)}
    assert wanted <= set(ids) and len(wanted) > 15


def test_the_routes_that_scripts_use_exist(server: Running) -> None:
    used = {
        path
        for text in SCRIPTS.values()
        for path in re.findall(r'\b(?:getJson|getText|post)\("([^"]+)"', text)
    }
    assert {"metrics", "v1/chat/completions"} <= used
    paths = server.get("/openapi.json").json["paths"]
    assert {f"/{path}" for path in used} <= set(paths)


def test_metrics_that_scripts_show_exist(server: Running) -> None:
    text = server.get("/metrics").body.decode()
    used = "".join(SCRIPTS[name] for name in ("tiles.js", "loads.js", "history.js", "dashboard.js"))
    shown = set(re.findall(r'"((?:vllm|flyweight):[a-z_]+)"', used))
    assert len(shown) >= 10
    assert [name for name in shown if f"\n{name}" not in text] == []


def test_files_are_small_and_open_with_a_comment() -> None:
    assert sum(len(text.encode()) for text in FILES.values()) < LARGEST
    for name, text in FILES.items():
        assert len(text.splitlines()) <= 320, name
        if name.endswith((".js", ".css")):
            assert text.startswith(("// ", "/* ")), name


@pytest.mark.parametrize("colours", palettes(), ids=["light", "dark"])
def test_text_can_be_read_in_both_themes(colours: dict[str, str]) -> None:
    for text in ("text", "quiet", "accent", "error", "warning"):
        for back in ("back", "panel"):
            assert contrast(colours[text], colours[back]) >= READABLE, (text, back)
    for text in ("text", "quiet"):
        assert contrast(colours[text], colours["raised"]) >= READABLE, text
    assert contrast(colours["on-accent"], colours["accent"]) >= READABLE


def test_light_and_dark_set_the_same_colours() -> None:
    blocks = re.findall(r":root[^{]*{(.*?)}", FILES["theme.css"], re.S)
    light, dark = (set(re.findall(r"--([\w-]+):", block)) for block in blocks)
    assert light == dark
    used = {n for text in FILES.values() for n in re.findall(r"var\(--([\w-]+)\)", text)}
    assert used - {"swatch"} <= light
