"""What the marks of reasoning are in one vocabulary.

Invariant: depends on the marks and the vocabulary alone; a token that is left out can be no part of
a mark, nor a blank before one.
"""

from dataclasses import dataclass

from flyweight.errors import RequestError
from flyweight.text.tokenizer import Tokenizer
from flyweight.text.tools.formats import ReasoningMarks
from flyweight.types import ThinkingBudget

NAME = "thinking_token_budget"
BLANKS = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class ThoughtSpelling:
    """Marks as bytes, the closing one as ids, and the bytes of all tokens that hold some of one."""

    opening: bytes
    closing: bytes
    ids: tuple[int, ...]
    parts: dict[int, bytes]

    @classmethod
    def of(cls, marks: ReasoningMarks, tokenizer: Tokenizer, vocab: int) -> "ThoughtSpelling":
        """For a model of `vocab` pieces, all of which are looked at.  Raises `RequestError`."""
        opening, closing = marks.opening.encode(), marks.closing.encode()
        ids = tokenizer.encode(marks.closing, add_special=False)
        written = b"".join([tokenizer.token_bytes(i, special=True) for i in ids])
        if written.strip() != closing or max(ids) >= vocab:
            raise RequestError(
                f": the mark {marks.closing!r}, which ends reasoning, cannot be encoded in "
                "this model's vocabulary; leave it out",
                NAME,
            )
        return cls(opening, closing, tuple(ids), _parts(tokenizer, vocab, (opening, closing)))

    def make_budget(self, budget: int, inside: int | None) -> ThinkingBudget:
        """With so many of its tokens at the prompt's end; None: it is not begun there."""
        opened, spent = inside is not None, inside or 0
        return ThinkingBudget(
            budget, opened, spent, self.opening, self.closing, self.ids, self.parts
        )


def _parts(tokenizer: Tokenizer, vocab: int, marks: tuple[bytes, ...]) -> dict[int, bytes]:
    heads = tuple(mark[:i] for mark in marks for i in range(1, len(mark) + 1))
    tails = tuple(mark[i:] for mark in marks for i in range(len(mark)))
    found = {}
    for i in range(min(vocab, tokenizer.vocab_size)):
        own = tokenizer.token_bytes(i, special=True)
        bare = own.lstrip(BLANKS)
        touches = own.endswith(heads) or own.startswith(tails)
        if own and (touches or any(bare in mark or mark in own for mark in marks)):
            found[i] = own
    return found
