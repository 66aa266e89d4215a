"""Plain words: class names are unique, help texts, errors and documents use standard terms, and the
files that documents name exist.
"""

import ast
import collections
import re
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import pytest
import typer

from flyweight.cli.main import app
from flyweight.cli.serve.options import GROUPS

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "src" / "flyweight").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    page for page in sorted((ROOT / "docs").rglob("*.md")) if "log" not in page.name and
    page.parent.name != "log"
]  # fmt: skip

FOLDERS = ("src", "native", "tests", "tools", "bench", "fuzz", "examples")
FILES = [
    path.relative_to(ROOT).as_posix()
    for top in FOLDERS
    for path in (ROOT / top).rglob("*")
    if path.suffix in (".py", ".cpp", ".h")
]

# Riddles and private vocabulary, with a standard term for each.
BANNED = {
    r"told|tells? (of|what|which|apart|that|no)": "report, return, list, distinguish",
    r"dialects?": "API",
    r"guesses( that stood)?": "draft tokens, accepted draft tokens",
    r"whoever|nobody|somebody|everybody": "the request, the client, no request",
    r"who (reads|decodes?|asks?|waits?|came)": "the client, the sequence",
    r"honour(s|ed)?": "is not supported",
    r"beside": "next to, with, compared with",
    r"held to": "constrained to, limited to",
    r"half a character": "an invalid surrogate",
    r"dear (masks?|grammars?)": "expensive",
    r"as (it|they) (lies?|stands?)": "unchanged, in the file's layout",
    r"the very (same|files?|one)": "the same",
    r"go(es)? round in circles": "repeat",
    r"has no (place|say|meaning)": "cannot be combined with, is ignored",
    r"never sleeps|gave up|made room": "is always awake, was preempted, was evicted",
    r"in crowds|sat out|prompts alone": "prefill-only",
    r"asked|asks?( of| for)?": "requested, required, needs",
    r"lies?": "is, is stored, contradiction",
    r"speaks|speech|hears?|heeds?": "has, uses, receives",
    r"stands? for": "represents, means",
    r"wherever|seams?|ledger|portrait|unasked": "at every place, interface, configuration, summary",
}
# Words of names, between underscores.
IN_NAMES = re.compile(
    r"_(told|tells|asked|beside|dialects?|nobody|somebody|everybody|whoever|honoured|guess(es)?|"
    r"hears?|lies?|speaks)(?=_|\b)"
)
IDIOMS = re.compile(r"\b(" + "|".join(BANNED) + r")\b", re.IGNORECASE)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The literals of a module that people may read: strings with a space, but no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in statements:
            literal = node.value
            if isinstance(literal, str) and " " in literal.strip():
                yield node.lineno, literal


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a module's comments and docstrings."""
    with path.open(encoding="utf-8") as file:
        for token in tokenize.generate_tokens(file.readline):
            docstring = token.type == tokenize.STRING and token.string.startswith('"""')
            if token.type == tokenize.COMMENT or docstring:
                yield from enumerate(token.string.splitlines(), token.start[0])


def idioms(path: Path) -> list[str]:
    return [
        f"{name(path)}:{line}: {found[0]!r} ({text[:60]!r})"
        for line, text in texts(path)
        for found in IDIOMS.finditer(text)
    ]


def prose(page: Path) -> Iterator[str]:
    """Paragraphs, list items, headings and table cells of a page, without code and link targets."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^ *(```+).*?^ *\1\s*$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "CODE", text)
    text = re.sub(r"^\s*(?:[-*>]|\d+\.|#+) ", "\n\n", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        rows, lines = [], []
        for line in block.strip().splitlines():
            (rows if line.lstrip().startswith("|") else lines).append(line.strip())
        yield " ".join(lines)
        for row in rows:
            yield from row.strip("|").split("|")


def words(text: str) -> int:
    return len(re.findall(r"\S*\w\S*", text))


def commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    yield path.strip(), command
    for sub, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {sub}")


def helps() -> Iterator[tuple[str, str]]:
    """Every option of every command, with its help."""
    for path, command in commands(typer.main.get_command(app)):
        for option in command.params:
            if not getattr(option, "hidden", False):
                shown = str(getattr(option, "help", None) or "")
                yield f"{path} {option.opts[0]}", re.sub(r"\s*\[default: .*\]$", "", shown)
    for flag in chain.from_iterable(GROUPS.values()):
        yield f"serve --{flag.name}", flag.help


def test_class_names_are_unique() -> None:
    found = collections.defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name(path))
    assert {key: places for key, places in found.items() if len(places) > 1} == {}


def test_texts_use_standard_terms() -> None:
    found = [hit for path in MODULES for hit in idioms(path)]
    assert found == []


def test_comments_use_standard_terms() -> None:
    lines = ((path, *line) for path in MODULES for line in comments(path))
    found = [f"{name(path)}:{line}: {text}" for path, line, text in lines if IDIOMS.search(text)]
    assert found == []


def test_names_of_tests_use_standard_terms() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    names = (re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")) for path in files)
    assert [one for one in chain.from_iterable(names) if IN_NAMES.search(one)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_documents_use_standard_terms_in_short_sentences(page: Path) -> None:
    paragraphs = list(prose(page))
    sentences = [s for p in paragraphs for s in re.split(r"(?<=[.!?;:])\s+", p)]
    assert [s for s in sentences if words(s) >= 30] == []
    assert [p for p in paragraphs if words(p) > 120] == []
    if page.name != "architecture.md":  # its glossary lists the old terms
        assert [s for s in sentences if IDIOMS.search(s)] == []


def named_files(page: Path) -> Iterator[str]:
    """Source files that a page names with a folder; braces are alternatives."""
    for text in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        if re.fullmatch(r"(?:[\w{},-]+/)+[\w{},-]+\.(?:py|cpp|h)", text):
            head, brace, tail = text.partition("{")
            inside, _, end = tail.partition("}")
            yield from (head + one + end for one in inside.split(",")) if brace else [text]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_documents_name_exist(page: Path) -> None:
    known = ["/" + file for file in FILES]
    named = named_files(page)
    assert [f for f in named if not any(one.endswith("/" + f) for one in known)] == []


def test_every_options_help_is_a_phrase() -> None:
    found = {
        option: text
        for option, text in helps()
        if not re.match(r"[A-Z`\"{(]", text) or not text.endswith(".") or words(text) < 3
    }
    assert found == {}


def test_every_command_has_a_help_of_one_sentence_or_more() -> None:
    found = {path: c.help for path, c in commands(typer.main.get_command(app)) if path}
    assert [path for path, text in found.items() if not text or words(text) < 3] == []
