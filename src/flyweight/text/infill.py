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
# What stands before the name of a project, and before a file of it.
PROJECT = ("<|repo_name|>", "<repo_name>", "<reponame>")
FILE = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")
NAMES = {*PROJECT, *FILE, *(name for kind in KINDS for name in kind)}
MARKS = re.compile("|".join(map(re.escape, sorted(NAMES))))
SNIPPET = "\n\n--- snippet ---\n\n"  # llama.cpp's, for a vocabulary without a mark of files
SHIELD = "\u263a"  # a character put before a text that is to begin without a blank


@dataclass(frozen=True, slots=True)
class Infill:
    """The ids of a vocabulary's marks; any of `ends` ends an answer.  Not all have marks of a
    `project` and of a `file`.
    """

    before: int
    after: int
    hole: int
    ends: tuple[int, ...]
    project: int | None = None
    file: int | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Infill | None":
        """None where a vocabulary has no such marks."""
        found: dict[str, int] = {}
        for token in range(tokenizer.vocab_size):
            piece = tokenizer.piece(token)
            if piece in NAMES:
                found[piece] = token
        for before, after, hole, *ends in KINDS:
            if before in found and after in found and hole in found:
                known = tuple(found[name] for name in ends if name in found)
                project = next((found[name] for name in PROJECT if name in found), None)
                file = next((found[name] for name in FILE if name in found), None)
                return cls(found[before], found[after], found[hole], known, project, file)
        return None

    def encode_prompt(
        self, before: str | Sequence[int], after: str | Sequence[int], tokenizer: Tokenizer
    ) -> list[int]:
        """The text `before` a hole, the hole's place, and what comes `after` it; ids are those of
        `encode_rest`.
        """
        first = before if not isinstance(before, str) else _encode_plain(before, tokenizer)
        start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        rest = after if not isinstance(after, str) else self.encode_rest(after, tokenizer)
        return [*start, self.before, *first, self.after, *rest, self.hole]

    def encode_plain(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """Ids of a text without any mark in it."""
        return _encode_plain(text, tokenizer)

    def encode_file(self, name: str, text: str, tokenizer: Tokenizer) -> list[int]:
        """Another file, or a part of one, to stand before the text with the hole."""
        if self.file is None:
            return _encode_plain(SNIPPET + text, tokenizer)
        return [self.file, *_encode_plain(f"{name or 'tmp'}\n{text}", tokenizer)]

    def encode_frame(self, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """What stands before all other files, and behind them: llama.cpp's names of a project and
        of the file with the hole.
        """
        head = (
            [] if self.project is None else [self.project, *_encode_plain("myproject\n", tokenizer)]
        )
        tail = [] if self.file is None else [self.file, *_encode_plain("filename\n", tokenizer)]
        return head, tail

    def encode_rest(self, after: str, tokenizer: Tokenizer) -> list[int]:
        """Ids of the text after a hole."""
        return _encode_unspaced(after, tokenizer)


def _encode_plain(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of `text`; a mark in it is taken apart, as some vocabularies read theirs anywhere."""
    cuts = [0, *(mark.start() + 1 for mark in MARKS.finditer(text)), len(text)]
    found: list[int] = []
    for start, end in pairwise(cuts):
        found += tokenizer.encode(text[start:end], add_special=False, parse_special=False)
    return found


def _encode_unspaced(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of `text` without the blank that some vocabularies put before every text."""
    ids = _encode_plain(text, tokenizer)
    if not _adds_space(tokenizer):
        return ids
    shield = _encode_plain(SHIELD, tokenizer)
    shielded = _encode_plain(SHIELD + text, tokenizer)
    return shielded[len(shield) :] if shielded[: len(shield)] == shield else ids


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary puts a blank before every text."""
    first = _encode_plain("a", tokenizer)[:1]
    return tokenizer.piece(first[0]).startswith("▁") if first else False
