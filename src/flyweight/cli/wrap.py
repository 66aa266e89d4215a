"""Word wrap for text that comes in pieces.

Invariant: line ends take the place of blanks between words, and nothing else changes; a word longer
than the window is left to the terminal.  A word is written when its end is known.  Without a width
text passes through as it is.
"""

from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len

NARROWEST = 20  # columns; a narrower window is left to the terminal


class WordWrapper:
    """Writes to `stream`, breaking lines at `width()` columns, where these are 20 or more."""

    def __init__(self, stream: TextIO, width: Callable[[], int]) -> None:
        self.stream, self.width = stream, width
        self.column = 0
        self.blanks = ""  # between what is written and `word`
        self.word = ""
        self.within = False  # a word longer than the window, of which a part is written

    def write(self, text: str) -> None:
        width = self.width()
        if width < NARROWEST:
            self.end()
            self.stream.write(text)
        else:
            for char in text:
                self._take(char, width)
        self.stream.flush()

    def end(self) -> None:
        """Writes what is held back."""
        self._put(self.width())
        self.stream.flush()

    def _take(self, char: str, width: int) -> None:
        if char == "\n":
            self._put(width)
            self.stream.write("\n")
            self.column, self.blanks, self.within = 0, "", False
        elif char in " \t":
            self._put(width)
            self.blanks, self.within = self.blanks + char, False
        else:
            self.word += char
            wide = not char.isascii() and cell_len(char) > 1  # scripts without blanks
            if wide or len(self.word) > width:
                self._put(width)
                self.within = not wide

    def _put(self, width: int) -> None:
        """Writes the word, on the next line where this one has no room for it."""
        if not self.word:
            return
        blanks, cells = self.blanks, cell_len(self.word)
        gap = len((" " * self.column + blanks).expandtabs(8)) - self.column
        breaks = self.column > 0 and not self.within
        if breaks and self.column + gap + cells > width >= NARROWEST:
            self.stream.write("\n")
            self.column, gap, blanks = 0, 0, ""
        self.stream.write(blanks + self.word)
        self.column += gap + cells
        if self.column > width >= NARROWEST:
            self.column %= width  # the terminal goes on by itself
        self.word = self.blanks = ""
