"""What a person types: lines edited with readline, pasted paragraphs, and text between \"\"\" over
several lines.

Invariant: what is typed or pasted at one prompt is one text; its line ends are kept.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

HISTORY = 1000  # entries kept between sessions
LINE_END = "\u2028"  # replaces a line end within an entry of the history's file
QUOTES = '"""'
PROMPT, GOES_ON = ">>> ", "... "


def read() -> str:
    """One prompt or command.  Raises `EOFError` at the end of input."""
    line = input(PROMPT).strip()
    head, quotes, text = line.partition(QUOTES)
    if not quotes or "\n" in head or (head and not head.startswith("/")):
        return line
    while not text.rstrip().endswith(QUOTES):
        text += "\n" + input(GOES_ON)
    return head + text.rstrip().removesuffix(QUOTES).strip("\n")


def edit_lines() -> None:
    """Arrow keys, bracketed paste, and a history kept between sessions, where there is a readline
    library and a home.
    """
    try:
        import atexit
        import readline
    except ImportError:
        return
    if "libedit" not in (readline.__doc__ or ""):  # it has no bracketed paste
        readline.parse_and_bind("set enable-bracketed-paste on")
    try:
        file = Path("~/.local/state/flyweight/history").expanduser()
    except RuntimeError:  # no home: a user id that no list of users has
        return
    readline.set_history_length(HISTORY)
    with suppress(OSError, UnicodeDecodeError):
        for entry in filter(None, file.read_text(encoding="utf-8").split("\n")):
            readline.add_history(entry.replace(LINE_END, "\n"))
    atexit.register(keep, readline, file)


def keep(readline: Any, file: Path) -> None:
    """Writes the newest entries of the history, one a line."""
    count = readline.get_current_history_length()
    items = [readline.get_history_item(i + 1) or "" for i in range(count)][-HISTORY:]
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(item.replace("\n", LINE_END) + "\n" for item in items)
        file.write_text(text, encoding="utf-8")
