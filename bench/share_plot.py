"""Draws the share of the machine's limit that steps reach, by their rows.

    python bench/rows.py MODEL --rows 1,2,4,8,16,32,64 --json > a.json   # for each setting
    python bench/share_plot.py a.json b.json --svg docs/img/share-of-limit.svg

A line is one file: `share` of the vector units' limit, or with a tile unit of that one's
(`of_tile`).  Measures nothing.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.svg import draw_lines


def make_series(found: dict[str, Any]) -> Series:
    """Points of one file, in percent."""
    tile = found["lines"][0]["of_tile"] is not None
    key = "of_tile" if tile else "share"
    points = [(float(line["rows"]), 100 * line[key]) for line in found["lines"]]
    return Series(found["label"], points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--svg", type=Path, required=True)
    args = parser.parse_args()
    series = [make_series(json.loads(path.read_text())) for path in args.files]
    plot = LinePlot(
        "A step's share of the limit", "rows of the step", "% of the limit",
        series, [Limit("limit", 100.0)], log_x=True,
    )  # fmt: skip
    args.svg.write_text(draw_lines(plot))


if __name__ == "__main__":
    main()
