"""Rows as text: llama-bench's md table with our columns, csv, json, jsonl.

Invariant: md is for people and rounds; the others hold every figure.
"""

import csv
import io
import json
from collections.abc import Sequence

from flyweight.bench.html import page
from flyweight.bench.rows import CACHED_BYTES, OURS, BenchRow, Spread
from flyweight.bench.surroundings import Surroundings

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
        return as_csv(rows)
    if form == "json":
        return json.dumps([row.document() for row in rows], indent=2)
    if form == "jsonl":
        return "\n".join(json.dumps(row.document()) for row in rows)
    if form == "html":
        return page(rows)
    return "\n".join((*head(), *map(line, rows)))


def head() -> list[str]:
    """The first two lines of the table."""
    rule = ["---:" if name in RIGHT else "---" for name in HEADS]
    return [_cells(HEADS), "|" + "|".join(rule) + "|"]


def line(row: BenchRow) -> str:
    """A row of the table, as llama-bench would say it."""
    return _cells(
        (
            row.model_type,
            f"{row.model_size / (1 << 20):.2f} MiB",
            f"{row.model_n_params / 1e6:.2f} M",
            backend(row),
            str(row.n_threads),
            test(row),
            f"{row.avg_ts:.2f} ± {row.stddev_ts:.2f}",
            f"{row.gbps:.1f}",
            f"{row.gops:.0f}",
            share(row),
            ratio(row.ratio),
        )
    )


def backend(row: BenchRow) -> str:
    return f"{row.engine} {row.isa}" if row.engine == OURS else row.engine


def test(row: BenchRow) -> str:
    """The test's name, with what was done to disturb it."""
    return row.test + (f" + {row.n_busy} busy" if row.n_busy else "")


def share(row: BenchRow) -> str:
    """`71 %`, and of a tile unit's limits in brackets; a dash for weights that caches hold, which
    memory's speed does not limit.
    """
    if row.model_size < CACHED_BYTES:
        return "–"
    tile = f" ({row.share_tile.median:.0%} of {row.isa})" if row.share_tile else ""
    return f"{row.share.median:.0%}{tile}".replace("%", " %")


def ratio(spread: Spread | None) -> str:
    """`1.42 [1.38..1.51]`"""
    if spread is None:
        return ""
    return f"{spread.median:.2f} [{spread.least:.2f}..{spread.most:.2f}]"


def machine_line(around: Surroundings, rows: Sequence[BenchRow]) -> str:
    """Where and beside what: the machine, its limits while the rows were taken, who else ran."""
    parts = [around.cpu, f"{around.cores} cores", f"{around.memory / (1 << 30):.0f} GiB"]
    if rows:
        isas = sorted({row.isa for row in rows if row.isa})
        reads = [row.limit_read for row in rows]
        others = [row.other_cores for row in rows]
        parts += [
            "/".join(isas),
            f"read {_range(reads)} GB/s",
            f"int8 {_range([row.limit_int8 for row in rows])} Gop/s",
            f"bf16 {_range([row.limit_bf16 for row in rows])} Gop/s",
            f"others used {_range(others, 2)} cores",
        ]
    versions = sorted({row.version for row in rows if row.engine != OURS})
    commit = f" ({around.commit})" if around.commit else ""
    return "; ".join([*parts, f"flyweight {around.version}{commit}", *versions])


def as_csv(rows: Sequence[BenchRow]) -> str:
    """A line a row; spreads as three columns, samples with blanks between them."""
    out = io.StringIO()
    flat = [_flat(row) for row in rows]
    if flat:
        writer = csv.DictWriter(out, list(flat[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
    return out.getvalue().rstrip("\n")


def _flat(row: BenchRow) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in row.document().items():
        if name in ("share", "share_tile", "ratio"):
            for part in ("median", "least", "most"):
                found[f"{name}_{part}"] = value[part] if value else ""
        elif isinstance(value, tuple | list):
            found[name] = " ".join(map(str, value))
        else:
            found[name] = value
    return found


def _range(figures: Sequence[float], digits: int = 0) -> str:
    low, high = f"{min(figures):.{digits}f}", f"{max(figures):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
