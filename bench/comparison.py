"""Draws docs/img/comparison.svg: flyweight next to other engines, from bench/comparison.json.

    python bench/comparison.py

Invariant: a bar is a figure of the file, or flyweight's figure divided by a measured ratio; the
file names machine, commit and command of each panel.  Measures nothing.  Standard library only.
"""

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DATA = Path(__file__).with_name("comparison.json")
OUT = Path(__file__).parents[1] / "docs" / "img" / "comparison.svg"
COLOURS = {
    "flyweight": "#2f6fde",
    "llama.cpp": "#9aa4b2",
    "OpenVINO GenAI": "#c2a878",
    "vLLM": "#8fb59a",
}
WIDTH, LEFT, BAR, GAP, HEAD = 760, 150, 18, 6, 34  # pixels
STYLE = """text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
fill:#1f2933}.title{font-weight:600}.unit,.foot{fill:#5b6673;font-size:12px}.value{font-weight:600}"""


def figures(panel: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Engine, value and label of each bar."""
    ours = panel["bars"][0]["value"]
    found = []
    for bar in panel["bars"]:
        measured = "value" in bar and not bar.get("about", False)
        value = bar["value"] if "value" in bar else ours / bar["ratio"]
        label = f"{value:,}" if measured else f"≈ {value:,.0f}"
        found.append((bar["engine"], value, label))
    return found


def draw(data: dict[str, Any]) -> str:
    parts: list[str] = []
    y = 12
    for panel in data["panels"]:
        bars = figures(panel)
        longest = max(value for _, value, _ in bars)
        parts.append(_text(12, y + 14, panel["title"], "title"))
        unit = f"{panel['unit']}, {panel['better']} is better"
        parts.append(f'<text x="{WIDTH - 12}" y="{y + 14}" class="unit" text-anchor="end">'
                     f"{escape(unit)}</text>")  # fmt: skip
        y += HEAD - 10
        for engine, value, label in bars:
            length = max(2.0, value / longest * (WIDTH - LEFT - 90))
            parts.append(_text(12, y + 14, engine))
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" '
                         f'fill="{COLOURS[engine]}"/>')  # fmt: skip
            parts.append(_text(LEFT + length + 8, y + 14, label, "value"))
            y += BAR + GAP
        y += HEAD - 22
    for line in footer(data):
        parts.append(_text(12, y + 10, line, "foot"))
        y += 16
    frame = f'<rect width="{WIDTH}" height="{y + 8}" rx="8" fill="#ffffff"/>'
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8}" '
            f'width="{WIDTH}" height="{y + 8}" role="img">')  # fmt: skip
    return "\n".join([head, f"<style>{STYLE}</style>", frame, *parts, "</svg>", ""])


def footer(data: dict[str, Any]) -> list[str]:
    machines = data["machines"]
    return [
        f"{data['model']}. Speeds: {machines['xeon']}.",
        f"Start: flyweight on that machine, the others on {machines['zen5']}.",
        "≈: from the measured ratio, or approximate. Engines that were not measured are left out.",
    ]


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>'


def main() -> None:
    OUT.write_text(draw(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
