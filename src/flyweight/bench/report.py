"""Rows as text: llama-bench's md table with our columns, csv, json, jsonl; and as one page of bars.

Invariant: md and the page are for people and round; the others hold every figure. The page is
self-contained: no script, no network, nothing from a file unescaped.
"""

import csv
import io
import json
from collections.abc import Sequence
from html import escape

from flyweight.bench.facts import Surroundings
from flyweight.bench.rows import CACHED_BYTES, OURS, BenchRow, Spread

DETERMINISTIC = (
    "deterministic: always on; overhead: n/a, there are no kernels without it to compare with"
)
FORMS = ("md", "csv", "json", "jsonl", "html")
HEADS = (
    "model", "size", "params", "backend", "threads", "test", "t/s", "GB/s", "Gop/s",
    "share of limit", "ours ÷ it",
)  # fmt: skip
RIGHT = frozenset(("size", "params", "threads", "test", "t/s", "GB/s", "Gop/s"))


def report(rows: Sequence[BenchRow], form: str) -> str:
    """All rows in one of `FORMS`."""
    if form == "csv":
        return write_csv(rows)
    if form == "json":
        return json.dumps([row.to_document() for row in rows], indent=2)
    if form == "jsonl":
        return "\n".join(json.dumps(row.to_document()) for row in rows)
    if form == "html":
        return write_page(rows)
    return "\n".join((*write_head(), *map(write_line, rows)))


def write_head() -> list[str]:
    """The first two lines of the table."""
    rule = ["---:" if name in RIGHT else "---" for name in HEADS]
    return [_join_cells(HEADS), "|" + "|".join(rule) + "|"]


def write_line(row: BenchRow) -> str:
    """A row of the table, as llama-bench would say it."""
    return _join_cells(
        (
            row.model_type,
            f"{row.model_size / (1 << 20):.2f} MiB",
            f"{row.model_n_params / 1e6:.2f} M",
            name_backend(row),
            str(row.n_threads),
            name_test(row),
            f"{row.avg_ts:.2f} ± {row.stddev_ts:.2f}",
            f"{row.gbps:.1f}",
            f"{row.gops:.0f}",
            format_share(row),
            format_ratio(row.ratio),
        )
    )


def name_backend(row: BenchRow) -> str:
    return f"{row.engine} {row.isa}" if row.engine == OURS else row.engine


def name_test(row: BenchRow) -> str:
    """The test's name, with what was done to disturb it."""
    return row.test + (f" + {row.n_busy} busy" if row.n_busy else "")


def format_share(row: BenchRow) -> str:
    """`71 %`, and of a tile unit's limits in brackets; a dash for weights that caches hold, which
    memory's speed does not limit.
    """
    if row.model_size < CACHED_BYTES:
        return "–"
    tile = f" ({row.share_tile.median:.0%} of {row.isa})" if row.share_tile else ""
    return f"{row.share.median:.0%}{tile}".replace("%", " %")


def format_ratio(spread: Spread | None) -> str:
    """`1.42 [1.38..1.51]`"""
    if spread is None:
        return ""
    return f"{spread.median:.2f} [{spread.least:.2f}..{spread.most:.2f}]"


def describe_machine(around: Surroundings, rows: Sequence[BenchRow]) -> str:
    """The machine, its limits while the rows were taken, and what else ran."""
    parts = [around.cpu, f"{around.cores} cores", f"{around.memory / (1 << 30):.0f} GiB"]
    if rows:
        isas = sorted({row.isa for row in rows if row.isa})
        reads = [row.limit_read for row in rows]
        others = [row.other_cores for row in rows]
        parts += [
            "/".join(isas),
            f"read {_format_range(reads)} GB/s",
            f"int8 {_format_range([row.limit_int8 for row in rows])} Gop/s",
            f"bf16 {_format_range([row.limit_bf16 for row in rows])} Gop/s",
            f"others used {_format_range(others, 2)} cores",
        ]
    versions = sorted({row.version for row in rows if row.engine != OURS})
    commit = f" ({around.commit})" if around.commit else ""
    return "; ".join([*parts, f"flyweight {around.version}{commit}", *versions])


def write_csv(rows: Sequence[BenchRow]) -> str:
    """A line a row; spreads as three columns, samples with blanks between them."""
    out = io.StringIO()
    flat = [_flatten(row) for row in rows]
    if flat:
        writer = csv.DictWriter(out, list(flat[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
    return out.getvalue().rstrip("\n")


def _flatten(row: BenchRow) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in row.to_document().items():
        if name in ("share", "share_tile", "ratio"):
            for part in ("median", "least", "most"):
                found[f"{name}_{part}"] = value[part] if value else ""
        elif isinstance(value, tuple | list):
            found[name] = " ".join(map(str, value))
        else:
            found[name] = value
    return found


def _format_range(figures: Sequence[float], digits: int = 0) -> str:
    low, high = f"{min(figures):.{digits}f}", f"{max(figures):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _join_cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


WIDTH, BAR, NAME, FIGURE = 420, 18, 150, 150  # pixels
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b7791f")
STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;color:#1a202c}"
    "h2{margin:1.6em 0 .2em}h3{margin:1em 0 .1em;font-weight:600}p{color:#4a5568}"
    "svg{display:block}text{font:12px system-ui,sans-serif;fill:#1a202c}"
)


def write_page(rows: Sequence[BenchRow]) -> str:
    """Models, in each its tests, in each its engines."""
    engines = list(dict.fromkeys(row.engine for row in rows))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(engines)}
    parts = []
    for model in dict.fromkeys((row.model_filename, row.model_type) for row in rows):
        mine = [row for row in rows if (row.model_filename, row.model_type) == model]
        parts.append(f"<h2>{escape(model[0])}</h2><p>{escape(describe_model(mine[0]))}</p>")
        for name in dict.fromkeys((row.test, row.n_busy) for row in mine):
            group = [row for row in mine if (row.test, row.n_busy) == name]
            busy = f" + {name[1]} busy" if name[1] else ""
            parts.append(f"<h3>{escape(name[0] + busy)}</h3>{draw_bars(group, colours)}")
    body = "\n".join(parts) or "<p>No rows.</p>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>flyweight bench'
        f"</title><style>{STYLE}</style></head>\n<body><h1>flyweight bench</h1>\n{body}\n</body>"
        "</html>"
    )


def describe_model(row: BenchRow) -> str:
    return (
        f"{row.model_type}, {row.model_size / 1e6:.0f} MB; {row.cpu_info}, {row.n_threads} threads"
    )


def draw_bars(rows: Sequence[BenchRow], colours: dict[str, str]) -> str:
    """Two columns of bars: tokens a second, and shares of the limit (a line marks all of it)."""
    fastest = max((row.avg_ts for row in rows), default=1.0) or 1.0
    second = NAME + WIDTH + FIGURE
    lines = []
    for i, row in enumerate(rows):
        y, colour = i * (BAR + 6), colours[row.engine]
        name = f"{row.engine} {row.isa}" if row.engine == OURS else row.engine
        times = f" · ours ×{row.ratio.median:.2f}" if row.ratio else ""
        lines += [
            f'<text x="0" y="{y + 13}">{escape(name)}</text>',
            draw_bar(NAME, y, row.avg_ts / fastest * WIDTH, colour, f"{row.avg_ts:.1f}{times}"),
        ]
        if row.model_size >= CACHED_BYTES:  # what caches hold has no share
            share = row.share.median
            lines.append(draw_bar(second, y, min(share, 1.2) * 160, colour, f"{share:.0%}"))
    height = len(rows) * (BAR + 6)
    lines.append(
        f'<line x1="{second + 160}" x2="{second + 160}" y1="0" y2="{height}" stroke="#a0aec0"/>'
    )
    size = f'width="{second + 160 + 80}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(lines)}</svg>'


def draw_bar(x: int, y: int, width: float, colour: str, label: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{max(width, 1):.1f}" height="{BAR}" fill="{colour}"/>'
        f'<text x="{x + max(width, 1) + 6:.1f}" y="{y + 13}">{escape(label)}</text>'
    )
