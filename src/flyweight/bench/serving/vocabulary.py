"""Prompts of exact lengths: as token ids, or as text that the tokenizer reads as so many tokens.

Invariant: a prompt that is handed out has the requested length, counted as the server counts it
(marks the vocabulary adds at the beginning or end are part of it).  Text is made of pieces that
stay what they are next to each other; what is made is counted once more all the same.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from flyweight.bench.serving.requests import Prompt
from flyweight.bench.workloads import FIRST_ID
from flyweight.errors import ConfigError
from flyweight.text.tokenizer import Tokenizer

POOL = 1024  # pieces that texts are made of
TRIES = 16  # corrections of a text that came out too short or too long
SPACES = "Ġ▁ "  # how pieces begin that begin with a space
UNKNOWN = 1000  # ids of a vocabulary of which nothing is known


class PromptMaker(Protocol):
    """Makes prompts; `draw` gives ids that `prompt` can put together."""

    def draw(self, rng: random.Random, count: int) -> list[int]: ...

    def make_prompt(self, ids: Sequence[int]) -> Prompt:
        """`len(ids)` tokens long."""

    def count(self, text: str) -> int:
        """Tokens of a text.  Raises `ConfigError` where there is no tokenizer."""

    def fit(self, text: str, length: int) -> Prompt:
        """The beginning of a text, `length` tokens of it."""


class IdPrompts:
    """Any ids of a vocabulary of `size`, but those in `special`; texts need the tokenizer."""

    def __init__(
        self, size: int, tokenizer: Tokenizer | None = None, special: frozenset[int] = frozenset()
    ) -> None:
        low = FIRST_ID if size > 4 * FIRST_ID else 0  # ids below are often bytes and marks
        self.tokenizer = tokenizer
        self.pool = [i for i in range(low, size) if i not in special]

    def draw(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(self.pool, k=count)

    def make_prompt(self, ids: Sequence[int]) -> Prompt:
        return [*ids]

    def count(self, text: str) -> int:
        return len(_require_tokenizer(self.tokenizer).encode(text))

    def fit(self, text: str, length: int) -> Prompt:
        found = _require_tokenizer(self.tokenizer).encode(text)
        while len(found) < length:
            found += _require_tokenizer(self.tokenizer).encode(text, add_special=False)
        return found[:length]


class TextPrompts:
    """Texts of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pool = list_stable_pieces(tokenizer)

    def draw(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(self.pool, k=count)

    def make_prompt(self, ids: Sequence[int]) -> Prompt:
        marks = self.count("")
        return self._fit_exactly([*ids[: max(0, len(ids) - marks)]], "", len(ids))

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    def fit(self, text: str, length: int) -> Prompt:
        words = text.split(" ")
        while self.count(" ".join(words)) < length:
            words += words
        low, high = 0, len(words)  # `low` words fit, `high` are as many or too many
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.count(" ".join(words[:middle])) <= length
            low, high = (middle, high) if fits else (low, middle)
        return self._fit_exactly([], " ".join(words[:low]), length)

    def _fit_exactly(self, ids: list[int], before: str, length: int) -> str:
        """`before` and pieces, so many of them that the count is right."""
        rng = random.Random(length)
        for _ in range(TRIES):
            text = before + self.tokenizer.decode(ids)
            over = self.count(text) - length
            if over == 0:
                return text
            if over > 0:
                if len(ids) < over:
                    before = before.rpartition(" ")[0]
                ids = ids[: max(0, len(ids) - over)]
            else:
                ids = ids + self.draw(rng, -over)
        raise ConfigError(
            f"no text of {length} tokens could be made with this tokenizer; "
            "send ids: --prompt-form ids"
        )


def list_stable_pieces(tokenizer: Tokenizer) -> list[int]:
    """Ids whose texts, one after another, are read as the same ids; words after a space first.
    Raises `ConfigError` where there are none.
    """
    letters = [
        i for i in range(tokenizer.vocab_size)
        if i not in tokenizer.special_ids and _is_letters(tokenizer.piece(i).lstrip(SPACES))
    ]  # fmt: skip
    random.Random(0).shuffle(letters)
    marked = [i for i in letters if tokenizer.piece(i)[0] in SPACES]
    for group in (marked, letters):
        found: list[int] = []
        for token in group:
            if _is_stable(tokenizer, token):
                found.append(token)
            if len(found) == POOL:
                break
        if len(found) > 1:
            return found
    raise ConfigError("this vocabulary has no words to make texts of; send ids: --prompt-form ids")


def _is_letters(piece: str) -> bool:
    return piece.isascii() and piece.isalpha()


def _is_stable(tokenizer: Tokenizer, token: int) -> bool:
    text = tokenizer.decode([token, token, token])
    return tokenizer.encode(text, add_special=False) == [token] * 3


def _require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise ConfigError("texts are counted with a tokenizer; give --tokenizer PATH")
    return tokenizer
