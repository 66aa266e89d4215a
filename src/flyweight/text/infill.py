"""Fill-in-the-middle: a text with a hole as the prompt a model was trained to fill.

Invariant: what stands before and behind the hole is plain text, which cannot forge the marks around
it.  Knows vocabularies by the names of their marks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flyweight.text.tokenizer import Tokenizer

# The marks before the text, before its continuation and before the hole, then what ends an answer.
KINDS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",  # Qwen 2.5 Coder, CodeGemma
     "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>",  # StarCoder, Granite
     "<fim_pad>", "<file_sep>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),  # Code Llama
)  # fmt: skip
MARKS = re.compile("|".join(re.escape(name) for kind in KINDS for name in kind))
SHIELD = "\u263a"  # a character put before a text that is to begin without a blank


@dataclass(frozen=True, slots=True)
class Infill:
    """The ids of a vocabulary's marks; any of `ends` ends an answer."""

    before: int
    after: int
    hole: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Infill | None":
        """None where a vocabulary has no such marks."""
        names = {name for kind in KINDS for name in kind}
        found: dict[str, int] = {}
        for token in range(tokenizer.vocab_size):
            piece = tokenizer.piece(token)
            if piece in names:
                found[piece] = token
        for before, after, hole, *ends in KINDS:
            if before in found and after in found and hole in found:
                known = tuple(found[name] for name in ends if name in found)
                return cls(found[before], found[after], found[hole], known)
        return None

    def prompt(
        self, before: str | Sequence[int], after: str | Sequence[int], tokenizer: Tokenizer
    ) -> list[int]:
        """The text `before` a hole, the hole's place, and what comes `after` it; ids are those of
        `rest`.
        """
        first = before if not isinstance(before, str) else _plain(before, tokenizer)
        start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        rest = after if not isinstance(after, str) else self.rest(after, tokenizer)
        return [*start, self.before, *first, self.after, *rest, self.hole]

    def rest(self, after: str, tokenizer: Tokenizer) -> list[int]:
        """Ids of the text after a hole."""
        return _unspaced(after, tokenizer)


def _plain(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of `text`; a mark in it is taken apart, as some vocabularies read theirs anywhere."""
    cuts = [0, *(mark.start() + 1 for mark in MARKS.finditer(text)), len(text)]
    found: list[int] = []
    for start, end in pairwise(cuts):
        found += tokenizer.encode(text[start:end], add_special=False, parse_special=False)
    return found


def _unspaced(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of `text` without the blank that some vocabularies put before every text."""
    ids = _plain(text, tokenizer)
    if not _spaces(tokenizer):
        return ids
    shield = _plain(SHIELD, tokenizer)
    shielded = _plain(SHIELD + text, tokenizer)
    return shielded[len(shield) :] if shielded[: len(shield)] == shield else ids


def _spaces(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary puts a blank before every text."""
    first = _plain("a", tokenizer)[:1]
    return tokenizer.piece(first[0]).startswith("▁") if first else False
