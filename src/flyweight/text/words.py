"""Strings of a request's sampling options, and the marks of reasoning, as token ids.

Invariant: depends on the strings and the vocabulary alone.  Ids the model has no logits for are
left out: they can never be drawn.  A token that is left out of a mark's parts can be no part of
it, nor a blank before one.
"""

from dataclasses import dataclass

from flyweight.errors import RequestError
from flyweight.text.tokenizer import Tokenizer
from flyweight.text.tools.formats import ReasoningMarks
from flyweight.types import DRY_BREAKERS, RequestWords, SamplingParams, ThinkingBudget

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
        return cls(opening, closing, tuple(ids), _find_parts(tokenizer, vocab, (opening, closing)))

    def make_budget(self, budget: int, inside: int | None) -> ThinkingBudget:
        """With so many of its tokens at the prompt's end; None: it is not begun there."""
        opened, spent = inside is not None, inside or 0
        return ThinkingBudget(
            budget, opened, spent, self.opening, self.closing, self.ids, self.parts
        )


def _find_parts(tokenizer: Tokenizer, vocab: int, marks: tuple[bytes, ...]) -> dict[int, bytes]:
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


REMEMBERED = 8  # lists of breakers; to find one means to read the whole vocabulary


class Lexicon:
    """Looks strings up for a model of `vocab` pieces."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self.tokenizer, self.vocab = tokenizer, vocab
        self._breakers: dict[tuple[str, ...], frozenset[int]] = {}
        self._marks: dict[ReasoningMarks, ThoughtSpelling] = {}

    def encode_words(self, params: SamplingParams) -> RequestWords:
        """Raises `RequestError` for strings this vocabulary cannot tell."""
        bad = dict.fromkeys(ids for word in params.bad_words for ids in self._list_spellings(word))
        return RequestWords(
            tuple(bad), self._find_end_tokens(params) if params.dry_multiplier else frozenset()
        )

    def encode_marks(self, marks: ReasoningMarks) -> ThoughtSpelling:
        """Raises `RequestError` where they cannot be spelled."""
        if marks not in self._marks:
            self._marks[marks] = ThoughtSpelling.of(marks, self.tokenizer, self.vocab)
        return self._marks[marks]

    def _list_spellings(self, word: str) -> list[tuple[int, ...]]:
        """A word at the beginning of a line and within one: without and with a space before it."""
        bare = word.lstrip() or word
        found = [tuple(self._encode(text)) for text in (bare, " " + bare)]
        if not found[0]:
            raise RequestError("has no tokens", "bad_words", value=word, allowed="text")
        return [ids for ids in found if max(ids) < self.vocab]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False, parse_special=False)

    def _find_end_tokens(self, params: SamplingParams) -> frozenset[int]:
        """Tokens whose text holds one of the strings."""
        strings = params.dry_sequence_breakers
        if strings not in self._breakers:
            if len(self._breakers) == REMEMBERED:
                self._breakers.pop(next(iter(self._breakers)))
            self._breakers[strings] = self._find_containing(strings)
        return self._breakers[strings]

    def _find_containing(self, strings: tuple[str, ...]) -> frozenset[int]:
        sought = {string.encode("utf-8", "replace"): False for string in strings}
        found = set()
        for id in range(min(self.vocab, self.tokenizer.vocab_size)):
            text = self.tokenizer.token_bytes(id)
            for string in sought:
                if string in text:
                    found.add(id)
                    sought[string] = True
        missing = [string for string, seen in sought.items() if not seen]
        if missing and strings != DRY_BREAKERS:
            raise RequestError(
                "is in no token of this model",
                "dry_sequence_breakers",
                value=missing[0].decode(),
                allowed="text that is part of a token",
            )
        return frozenset(found)
