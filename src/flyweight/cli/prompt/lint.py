"""`flyweight prompt lint FILE...`: tokens per section, and what keeps the prefix cache from being
used.

Reads a model's tokenizer and chat template alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.reports import ReportOutput
from flyweight.config import Settings

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.planning.report import Report, ReportTable
    from flyweight.prompts.lint import PromptFinding, PromptLint

FOUND = 1  # the exit code of --strict
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Text, chat messages in .json, or requests in .jsonl, one a line.",
    ),
]
Model = Annotated[
    str, typer.Option("-m", "--model", metavar="MODEL", help="The model that gets the prompts.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is a finding.")]
Engine = Annotated[Values, opt.select_settings("block_size", "revision", "offline")]


@expand
def lint(
    *,
    files: Files,
    model: Model = "stories",
    strict: Strict = False,
    engine: Engine,
    out: ReportOutput,
) -> int:
    """Find what keeps prompts out of the prefix cache.

    Several requests are compared with each other, in order. Of one request, dates, times and ids
    count as text that changes.
    """
    settings = Settings.of(model=model, **engine)
    from flyweight.cli.show import show_loading
    from flyweight.describe import find, open_tokenizer
    from flyweight.prompts.lint import PromptLinter
    from flyweight.prompts.requests import read_requests

    requests = read_requests(files)
    with show_loading() as listener:
        path = find(settings, listener)
    found = PromptLinter(open_tokenizer(path), settings.block_size).lint(requests)
    out.show(make_report(found, as_json=out.as_json))
    return FOUND if strict and found.findings else 0


def make_report(found: PromptLint, *, as_json: bool) -> Report:
    """Findings are a table for scripts, and lines for people."""
    from flyweight.planning.report import Report

    tables = [make_sections(found), make_reuse(found)]
    lines = [] if as_json else list(list_findings(found))
    if as_json:
        tables.insert(1, make_findings(found))
    return Report("Prompt lint", tables, lines)


def make_sections(found: PromptLint) -> ReportTable:
    from flyweight.planning.report import Column, ReportTable, Value

    columns = [
        Column("section", "section"),
        Column("requests", "requests"),
        Column("tokens", "tokens"),
        Column("share", "share", lambda share: f"{100 * share:.1f} %"),
    ]
    rows: list[list[Value]] = [
        [one.name, one.requests, one.tokens, one.tokens / found.tokens] for one in found.sections
    ]
    rows.append(["all", found.requests, found.tokens, 1.0])
    return ReportTable(
        "sections", "Tokens per section", columns, rows, strong=frozenset({len(rows) - 1})
    )


def make_reuse(found: PromptLint) -> ReportTable:
    """What the prefix cache finds, before and after."""
    from flyweight.planning.report import Column, ReportTable, Value

    columns = [
        Column("prompts", "prompts"),
        Column("tokens", "tokens"),
        Column("cached_tokens", "cached"),
        Column("hit_rate", "hit rate", lambda rate: f"{100 * rate:.1f} %"),
    ]
    rows: list[list[Value]] = [
        [name, one.tokens, one.found, one.rate]
        for name, one in (("as they are", found.now), ("volatile text last", found.moved))
    ]
    which = (
        "a second request that differs in its dates, times and ids"
        if found.single
        else "all requests in order, the first one cold"
    )
    note = f"Blocks of {found.block_size} tokens; {which}. Nothing is evicted."
    return ReportTable("reuse", "Predicted prefix cache", columns, rows, [note])


def make_findings(found: PromptLint) -> ReportTable:
    from flyweight.planning.report import Column, ReportTable

    names = ("rule", "where", "section", "token", "lost", "problem", "fix")
    rows = [[getattr(one, name) for name in names] for one in found.findings]
    return ReportTable("findings", "Findings", [Column(name, name) for name in names], rows)


def list_findings(found: PromptLint) -> Iterator[str]:
    """Two lines each."""
    from flyweight.validation.untrusted import printable

    for i, one in enumerate(found.findings, 1):
        yield f"{i}. {printable(describe_place(one))}: {printable(one.problem)}"
        cost = f" ({one.lost} tokens would be found)" if one.rule == "volatile" else ""
        cost = f" ({one.lost} tokens are computed again)" if one.rule == "drift" else cost
        yield f"   fix: {one.fix}{cost}"
    if not found.findings:
        yield "No findings."


def describe_place(one: PromptFinding) -> str:
    token = f", token {one.token}" if one.rule in ("volatile", "drift") else ""
    return f"{one.where}{' ' if one.section else ''}{one.section}{token}"
