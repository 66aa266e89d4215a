"""Records a command in a pseudo-terminal and writes the session as an animated SVG.

    python tools/record_terminal.py docs/img/run.svg --say "One day, a little bird" \\
        --say /stats --say /bye -- flyweight run --seed 4 --temperature 0.6

`--say LINE` types a line each time the command shows its prompt.  Invariant: every character comes
from the command, at the time it came; a viewer without animation shows the final screen.  Knows
the few control sequences that `flyweight run` writes; ignores all others.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

PROMPT = b">>> "
SILENCE = 120.0  # seconds without output after which the recording fails
KEY = 0.06  # seconds between typed characters
CELL, LINE, MARGIN = 8.4, 20, 16  # pixels of a character and a line at 14 px
FRAME = 0.05  # seconds; characters of one frame appear together
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([@-~])|\x1b\][^\x07]*\x07|\x1b.|[\x00-\x1f\x7f]|[^\x1b]")
STYLE = """text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
white-space:pre;fill:#d5d9e0;animation:appear 1ms backwards}.dim{fill:#8b94a3}.bold{font-weight:700}
@keyframes appear{from{opacity:0}}@media(prefers-reduced-motion:reduce){text{animation:none}}"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A character, its style, and the second at which it appeared."""

    text: str
    style: str
    at: float


@dataclass
class Screen:
    """Rows of cells.  Grows downwards without a limit; never scrolls."""

    rows: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: str = ""

    def write(self, text: str, at: float) -> None:
        for match in SEQUENCE.finditer(text):
            if match[2]:
                self._control(match[1], match[2])
            elif len(match[0]) == 1:
                self._character(match[0], at)

    def _character(self, one: str, at: float) -> None:
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self.row += 1
            while len(self.rows) <= self.row:
                self.rows.append([])
        elif one == "\b":
            self.column = max(0, self.column - 1)
        elif one.isprintable():
            line = self.rows[self.row]
            line += [Cell(" ", "", at)] * (self.column - len(line))
            line[self.column : self.column + 1] = [Cell(one, self.style, at)]
            self.column += 1

    def _control(self, numbers: str, kind: str) -> None:
        first = int(numbers) if numbers.isdecimal() else 0
        if kind == "m":
            names = {"1": "bold", "2": "dim"}
            self.style = names.get(numbers, "" if numbers in ("", "0") else self.style)
        elif kind == "K" and not first:
            del self.rows[self.row][self.column :]
        elif kind in "CD":
            step = max(1, first)
            self.column = max(0, self.column + (step if kind == "C" else -step))


def record(words: list[str], lines: list[str], columns: int) -> list[tuple[float, str]]:
    """Runs a command; what it wrote, with the second at which it came."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (40, columns))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    with tempfile.TemporaryDirectory() as cache:
        run = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=kept | {"TERM": "xterm", "INPUTRC": "/dev/null", "FLYWEIGHT_CACHE": cache},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        try:
            return _read(master, list(lines))
        finally:
            run.kill()
            run.wait()


def _read(master: int, lines: list[str]) -> list[tuple[float, str]]:
    began, found, shown = time.monotonic(), [], b""
    keys: list[str] = []
    while True:
        if not keys and lines and shown.endswith(PROMPT):
            keys, shown = [*lines.pop(0), "\n"], b""
        if select.select([master], [], [], KEY if keys else SILENCE)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:  # the command ended
                return found
            found.append((time.monotonic() - began, data.decode("utf-8", "replace")))
            visible = re.sub(rb"\x1b\[[0-9;?]*[@-~]", b"", data)
            shown = (shown + visible)[-len(PROMPT) :]
        elif keys:
            os.write(master, keys.pop(0).encode())
        else:
            raise SystemExit(f"no output for {SILENCE:.0f} s")


def draw(screen: Screen, columns: int) -> str:
    """The screen as an SVG in which each run of characters appears at its time."""
    rows = list(screen.rows)
    while rows and not rows[-1]:
        rows.pop()
    width, height = 2 * MARGIN + columns * CELL, 2 * MARGIN + len(rows) * LINE
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" rx="8" fill="#1b1f27"/>',
    ]
    for number, row in enumerate(rows):
        y, column = MARGIN + number * LINE + 14, 0
        for (style, frame), cells in groupby(row, key=lambda c: (c.style, int(c.at / FRAME))):
            whole = "".join(cell.text for cell in cells)
            text = whole.strip()  # renderers differ in how they place blanks
            x = MARGIN + (column + len(whole) - len(whole.lstrip())) * CELL
            length, column = len(text) * CELL, column + len(whole)
            if text:
                named = f' class="{style}"' if style else ""
                found.append(
                    f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}"{named} '
                    f'style="animation-delay:{frame * FRAME:.2f}s">{escape(text)}</text>'
                )
    return "\n".join([*found, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="the SVG to write")
    parser.add_argument("--say", action="append", default=[], help="a line to type at the prompt")
    parser.add_argument("--columns", type=int, default=92, help="width of the terminal")
    parser.add_argument("command", nargs="+", help="flyweight, and its arguments")
    given = parser.parse_args()
    words = list(given.command)
    if words[0] == "flyweight":
        words[:1] = [sys.executable, "-m", "flyweight"]
    screen = Screen()
    screen.write(f"$ {shlex.join(given.command)}\r\n", 0.0)
    for at, text in record(words, given.say, given.columns):
        screen.write(text, at)
    given.out.write_text(draw(screen, given.columns), encoding="utf-8")
    print(f"{given.out}: {given.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
