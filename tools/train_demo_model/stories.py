"""Reading stories: files of stories separated by `<|endoftext|>`, cleaned alike everywhere.

Invariant: the held-out stories (the last 5 % of the excerpt) never reach the vocabulary, the
sampling prompts or a training batch; every script takes its split from `split_excerpt`.
"""

from pathlib import Path

SEPARATOR = "<|endoftext|>"
HELD_OUT = 0.05

# The excerpt mixes typographic and plain punctuation; one spelling of each saves pieces.
_TYPOGRAPHIC = "\u201c\u201d\u2018\u2019\u2013\u2014"  # quotation marks, apostrophes, dashes
_PLAIN = str.maketrans(_TYPOGRAPHIC, "\"\"''--")


def clean(story: str) -> str:
    """The story with plain punctuation, single blanks, and no blank at a line's edge."""
    lines = (" ".join(line.split()) for line in story.translate(_PLAIN).splitlines())
    return "\n".join(line for line in lines if line)


def read_stories(path: Path) -> list[str]:
    """Every non-empty story of a text file, cleaned, in file order."""
    parts = path.read_text(encoding="utf-8").split(SEPARATOR)
    return [story for story in map(clean, parts) if story]


def write_stories(path: Path, stories: list[str]) -> None:
    """Writes the file under another name first, so that a reader never sees half of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(f"\n{SEPARATOR}\n".join(stories) + "\n", encoding="utf-8")
    partial.replace(path)


def split_excerpt(path: Path) -> tuple[list[str], list[str]]:
    """The excerpt's stories as (training, held out)."""
    stories = read_stories(path)
    cut = round(len(stories) * (1.0 - HELD_OUT))
    return stories[:cut], stories[cut:]
