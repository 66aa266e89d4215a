"""Rows as one page: bars of tokens a second, ours beside peers', and of the share of the limit.

Invariant: the page is self-contained: no script, no network, nothing from a file unescaped.
"""

from collections.abc import Sequence
from html import escape

from flyweight.bench.rows import CACHED_BYTES, OURS, BenchRow

WIDTH, BAR, NAME, FIGURE = 420, 18, 150, 150  # pixels
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b7791f")
STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;color:#1a202c}"
    "h2{margin:1.6em 0 .2em}h3{margin:1em 0 .1em;font-weight:600}p{color:#4a5568}"
    "svg{display:block}text{font:12px system-ui,sans-serif;fill:#1a202c}"
)


def page(rows: Sequence[BenchRow]) -> str:
    """Models, in each its tests, in each its engines."""
    engines = list(dict.fromkeys(row.engine for row in rows))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(engines)}
    parts = []
    for model in dict.fromkeys((row.model_filename, row.model_type) for row in rows):
        mine = [row for row in rows if (row.model_filename, row.model_type) == model]
        parts.append(f"<h2>{escape(model[0])}</h2><p>{escape(about(mine[0]))}</p>")
        for name in dict.fromkeys((row.test, row.n_busy) for row in mine):
            group = [row for row in mine if (row.test, row.n_busy) == name]
            busy = f" + {name[1]} busy" if name[1] else ""
            parts.append(f"<h3>{escape(name[0] + busy)}</h3>{bars(group, colours)}")
    body = "\n".join(parts) or "<p>No rows.</p>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>flyweight bench'
        f"</title><style>{STYLE}</style></head>\n<body><h1>flyweight bench</h1>\n{body}\n</body>"
        "</html>"
    )


def about(row: BenchRow) -> str:
    return (
        f"{row.model_type}, {row.model_size / 1e6:.0f} MB; {row.cpu_info}, {row.n_threads} threads"
    )


def bars(rows: Sequence[BenchRow], colours: dict[str, str]) -> str:
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
            bar(NAME, y, row.avg_ts / fastest * WIDTH, colour, f"{row.avg_ts:.1f}{times}"),
        ]
        if row.model_size >= CACHED_BYTES:  # what caches hold has no share
            share = row.share.median
            lines.append(bar(second, y, min(share, 1.2) * 160, colour, f"{share:.0%}"))
    height = len(rows) * (BAR + 6)
    lines.append(
        f'<line x1="{second + 160}" x2="{second + 160}" y1="0" y2="{height}" stroke="#a0aec0"/>'
    )
    size = f'width="{second + 160 + 80}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(lines)}</svg>'


def bar(x: int, y: int, width: float, colour: str, label: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{max(width, 1):.1f}" height="{BAR}" fill="{colour}"/>'
        f'<text x="{x + max(width, 1) + 6:.1f}" y="{y + 13}">{escape(label)}</text>'
    )
