"""The tables of docs/performance.md from files of results, with the floor of each row.

    python bench/tables.py RESULTS.jsonl [...] [--write docs/performance.md] [--plot shares.svg]

Without --write the tables are printed.  Of equal figures the newest counts.  The best peer of a row
is the one ours was least faster than, in the same rounds.  The plot shows the share of the limit by
the rows of a step.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flyweight.bench.facts import Surroundings
from flyweight.bench.report import describe_machine, format_ratio, format_share
from flyweight.bench.rows import OURS, BenchRow, load
from flyweight.planning.plots import LinePlot, Series
from flyweight.planning.svg import draw_lines

BEGIN, END = "<!-- tables: python bench/tables.py -->", "<!-- end of tables -->"
FAST_MEMORY = 50.0  # GB/s; above, more is required of decoding
MOST = 0.9  # where a ratio would need more of the limit, the share alone binds
HEADS = (
    "model", "test", "ours, t/s", "share of limit", "floor", "best peer, t/s", "ours ÷ it",
    "floor", "",
)  # fmt: skip


@dataclass(frozen=True)
class Floor:
    """What a row must reach at least: times a peer's speed, and of the limit.  `peer` is whose
    speed, the best's where it is empty; `default` times llama.cpp's default in addition.
    """

    ratio: float = 0.0
    share: float = 0.0
    peer: str = ""
    default: float = 0.0


@dataclass(frozen=True)
class Group:
    """Rows of one test: ours, and peers'."""

    ours: BenchRow
    peers: tuple[BenchRow, ...]

    def best(self, name: str = "") -> BenchRow | None:
        """The fastest peer of that name."""
        mine = [p for p in self.peers if p.ratio and p.engine.startswith(name)]
        return min(mine, key=lambda p: p.ratio.median if p.ratio else 0.0) if mine else None


def floor(row: BenchRow) -> Floor:
    """What is required of a row."""
    kind = Path(row.model_filename).stem
    four = kind in ("q4_0", "q4_k_m")
    if row.model_size < 50 << 20:
        return Floor(ratio=0.7, peer="llama.cpp") if row.n_gen and row.n_seqs == 1 else Floor()
    if row.isa == "avx2":
        return Floor(ratio=1.5 if row.n_prompt else 1.2, peer="llama.cpp")
    if row.n_busy:
        return Floor()
    if row.n_prompt:
        return prefill(row, kind)
    if row.n_shared:
        return Floor(ratio=4.0, peer="llama.cpp")
    if row.n_seqs > 1:
        return batch(row, kind)
    if row.n_depth:
        return Floor(1.4, 0.7, default=2.5) if kind == "q4_0" else Floor()
    if four:
        return Floor(1.8 if row.limit_read > FAST_MEMORY else 1.4, 0.85)
    return Floor(1.1 if kind == "q8_0" else 1.0, 0.88)


def prefill(row: BenchRow, kind: str) -> Floor:
    if row.n_depth:
        return Floor()
    long, wide = row.n_prompt >= 2048, kind == "bf16"
    return Floor((1.4 if wide else 1.2) if long else (1.5 if wide else 1.4), 0.6 if wide else 0.55)


def batch(row: BenchRow, kind: str) -> Floor:
    if row.n_seqs >= 16:
        return Floor(2.3 if row.n_seqs >= 64 else 2.0, 0.45)
    return Floor(ratio=2.5, peer="llama.cpp") if kind == "q4_0" else Floor()


def verdict(group: Group, requested: Floor) -> str:
    """`met`, or what is not."""
    # Where there is a tile unit, the limit is that unit's peak.
    share, missed = (group.ours.share_tile or group.ours.share).median, []
    if share < requested.share:
        missed.append("share")
    best, default = group.best(requested.peer), group.best("llama.cpp")
    binds = best and best.ratio and requested.ratio / best.ratio.median * share <= MOST
    if requested.ratio and best is None:
        missed.append("no peer")
    elif best and best.ratio and binds and best.ratio.median < requested.ratio:
        missed.append("ratio")
    plain = next((p for p in group.peers if p.engine == "llama.cpp"), default)
    if requested.default and plain and plain.ratio and plain.ratio.median < requested.default:
        missed.append("llama.cpp's default")
    if requested == Floor():
        return ""
    return f"not met: {', '.join(missed)}" if missed else "met"


def groups(rows: Sequence[BenchRow]) -> list[Group]:
    """Newest rows, by what was requested, ours first."""
    newest = {row.key: row for row in rows}
    found = []
    for row in newest.values():
        if row.engine != OURS:
            continue
        same = row.key[1:]
        peers = [p for p in newest.values() if p.engine != OURS and p.key[1:] == same]
        found.append(Group(row, tuple(peers)))
    return found


def line(group: Group, quiet: BenchRow | None) -> str:
    """A row of the table; `quiet` is the same without busy neighbours."""
    ours, requested = group.ours, floor(group.ours)
    best = group.best(requested.peer)
    said = verdict(group, requested)
    if ours.n_busy and quiet:
        kept = ours.avg_ts / quiet.avg_ts
        said = f"keeps {kept:.0%} of its quiet figure: " + ("met" if kept >= 0.5 else "not met")
    if ours.outside_us and ours.n_gen and ours.n_seqs == 1 and not ours.n_depth:
        said = f"{said}; {ours.outside_us:.0f} us a step outside the model".removeprefix("; ")
    theirs = f"{best.engine}: {best.avg_ts:.1f}" if best else "none here"
    cells = (
        ours.model_filename,
        ours.test + (f" + {ours.n_busy} busy" if ours.n_busy else ""),
        f"{ours.avg_ts:.1f} ± {ours.stddev_ts:.1f}",
        format_share(ours),
        f"{requested.share:.0%}" if requested.share else "",
        theirs,
        format_ratio(best.ratio) if best else "",
        f"{requested.ratio:g}" if requested.ratio else "",
        said,
    )
    return "| " + " | ".join(re.sub(r"(?<=\d)%", " %", cell) for cell in cells) + " |"


def tables(rows: Sequence[BenchRow]) -> Iterator[str]:
    """A table for every instruction set ours ran with, and the machine line."""
    made = groups(rows)
    quiet = {g.ours.key[:-1]: g.ours for g in made if not g.ours.n_busy}
    for isa in dict.fromkeys(g.ours.isa for g in made):
        mine = [g for g in made if g.ours.isa == isa]
        yield f"### {isa}"
        yield ""
        yield "| " + " | ".join(HEADS) + " |"
        yield "|---" * len(HEADS) + "|"
        yield from (line(g, quiet.get(g.ours.key[:-1])) for g in mine)
        yield ""
        all_rows = [row for g in mine for row in (g.ours, *g.peers)]
        newest, here = max(all_rows, key=lambda row: row.test_time), Surroundings.here()
        version, commit = mine[0].ours.version, newest.build_commit
        around = Surroundings(newest.cpu_info, here.cores, here.memory, version, commit)
        yield describe_machine(around, all_rows)
        yield ""


def plot_shares(rows: Sequence[BenchRow]) -> LinePlot:
    """The share of the limit, the tile unit's where there is one, by the rows of a step: sequences
    of a decode, tokens of a prompt.  Not of rows with a context, a busy neighbour, or a model whose
    weights may stay in the caches.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for group in groups(rows):
        ours = group.ours
        if ours.n_depth or ours.n_shared or ours.n_busy or ours.model_size < 50 << 20:
            continue
        name = f"{Path(ours.model_filename).stem} {ours.activations} {ours.isa}"
        share = 100 * (ours.share_tile or ours.share).median
        points.setdefault(name, []).append((ours.n_prompt or ours.n_seqs, share))
    series = [Series(name, sorted(found)) for name, found in points.items()]
    title = "Share of the limit by rows of a step"
    return LinePlot(title, "rows: sequences, or tokens of a prompt", "percent", series, log_x=True)


def written(page: Path, text: str) -> None:
    """Puts the tables between the page's marks."""
    old = page.read_text(encoding="utf-8")
    head, found, rest = old.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    assert found and closed, f"{page} lacks {BEGIN} or {END}"
    page.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    rows = [row for path in args.results for row in load(path)]
    if args.plot:
        plot = plot_shares(rows)
        if not plot.series:
            parser.error("--plot: no row of ours without context or busy neighbours")
        args.plot.write_text(draw_lines(plot), encoding="utf-8")
    text = "\n".join(tables(rows))
    if args.write:
        written(args.write, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
