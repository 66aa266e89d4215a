"""`flyweight check MODEL`: every problem of a model, then one token; exit code 1 if it has any."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.config import Settings

if TYPE_CHECKING:  # commands import what computes when they run
    from rich.table import Table

    from flyweight.checks.examine import Finding

MOST = 20  # findings of one stage and kind that are shown; --json has all
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "skipped": "dim"}


@expand
def check(
    *,
    model: opt.Model = "stories",
    engine: Annotated[
        Values,
        opt.select_settings(
            "max_model_len",
            "memory_limit",
            "threads",
            "activations",
            "kv_cache_dtype",
            "revision",
            "offline",
        ),
    ],
    as_json: opt.AsJson = False,
) -> int:
    """Read all of a model, report every problem, and run one token."""
    settings = Settings.of(model=model, max_num_seqs=1, **engine)
    from flyweight.checks.examine import Examination
    from flyweight.cli.show import make_console, show_loading
    from flyweight.describe import find

    with show_loading() as listener:
        path = find(settings, listener)
        looked = Examination(path, settings, listener.report_progress)
        findings = looked.run()
    if as_json:
        found = [asdict(finding) for finding in findings]
        print(json.dumps({"path": str(path), "problems": looked.problems, "findings": found}))
    else:
        console = make_console()
        console.print(make_report(path, findings))
        console.print(count_findings(findings), highlight=False)
    return 1 if looked.problems else 0


def make_report(path: Path, findings: list[Finding]) -> Table:
    """A row for every finding, up to MOST of a sort."""
    from rich.text import Text

    from flyweight.cli.show import format_name, make_table
    from flyweight.validation.untrusted import printable

    table = make_table(format_name(path), "stage", "", "found")
    seen: Counter[tuple[str, str]] = Counter()
    total = Counter((f.stage, f.level) for f in findings)
    before = ""
    for finding in findings:
        sort = finding.stage, finding.level
        seen[sort] += 1
        text = printable(finding.text)
        if seen[sort] == MOST + 1:
            text = f"and {total[sort] - MOST} more; --json has all"
        elif seen[sort] > MOST:
            continue
        level = Text(finding.level, STYLES[finding.level])
        table.add_row(finding.stage if finding.stage != before else "", level, text)
        before = finding.stage
    return table


def count_findings(findings: list[Finding]) -> str:
    """`2 problems, 1 warning`, or that there are none."""
    many = Counter(finding.level for finding in findings)
    words = [
        f"{many[level]} {level}{'s' if many[level] > 1 else ''}"
        for level in ("problem", "warning")
        if many[level]
    ]
    return ", ".join(words) or "no problems"
