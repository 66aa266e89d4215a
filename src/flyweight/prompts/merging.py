"""Several documents under one instruction as one request, whose answer is split again.

Invariant: an answer is split by the names in its JSON schema, into as many texts as the prompt has
documents and in their order; any other answer is refused.  Knows no engine and no server, and not
whose documents they are: only the caller may merge them.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flyweight.errors import ConfigError, RequestError
from flyweight.sampling.patterns import LONGEST_TEXT
from flyweight.text.tokenizer import Tokenizer

MOST_DOCUMENTS = 64
# It names no number of documents: prompts of other sizes begin with the same text, whose blocks are
# found in the prefix cache.
FORM = (
    "Do this for each document by itself, from its own text alone. Answer with one JSON object: "
    'the text for [DOCUMENT 1] under "document_1", and so on.'
)
HEADING = re.compile(r"\[document \d+\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MergedPrompt:
    """One request for all of `documents`.  `tokens` are those of `text`; `messages` are the same
    prompt for a chat.
    """

    text: str
    messages: tuple[dict[str, str], ...]
    documents: tuple[str, ...]
    tokens: int
    max_length: int | None

    @property
    def names(self) -> list[str]:
        """The keys of an answer, in the order of the documents."""
        return [f"document_{i}" for i in range(1, len(self.documents) + 1)]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of an answer: an object with a text for each document, nothing else."""
        text: dict[str, Any] = {"type": "string", "minLength": 1}
        if self.max_length is not None:
            text["maxLength"] = self.max_length
        return {
            "type": "object",
            "properties": dict.fromkeys(self.names, text),
            "required": self.names,
            "additionalProperties": False,
        }

    def split(self, answer: str) -> list[str]:
        """The texts of an answer, in the order of the documents.  Raises `RequestError` where it
        is truncated, or not what the schema describes.
        """
        try:
            # Objects as pairs, as a dict would hide that a name occurs twice.
            pairs = json.loads(answer, object_pairs_hook=tuple)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"is not complete JSON: {error}",
                "answer",
                value=answer,
                hint='if its finish_reason is "length", raise max_tokens',
            ) from None
        found: dict[str, Any] = dict(pairs) if isinstance(pairs, tuple) else {}
        texts: list[str] = [found.get(name, "") for name in self.names]
        if not all(map(self._fits, texts)) or len(pairs) != len(texts):
            names = " to ".join(dict.fromkeys((self.names[0], self.names[-1])))
            most = "or more" if self.max_length is None else f"to {self.max_length:,}"
            allowed = f"an object of {names}, each with a text of 1 {most} characters"
            raise RequestError("does not have the schema", "answer", value=answer, allowed=allowed)
        return texts

    def _fits(self, text: object) -> bool:
        """Also of a value that is no text."""
        if not isinstance(text, str) or not text:
            return False
        return self.max_length is None or len(text) <= self.max_length


@dataclass(frozen=True, slots=True)
class MergeTemplate:
    """An instruction for many documents.  `max_length` is the most characters of the text for each
    of them.
    """

    instruction: str
    max_length: int | None = None

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ConfigError("is empty", "instruction", allowed="text")
        _check_range("max_length", 1 if self.max_length is None else self.max_length, LONGEST_TEXT)

    def make(self, tokenizer: Tokenizer, documents: Sequence[str]) -> MergedPrompt:
        """The request for all of these documents.  Raises `ConfigError` where one is empty or,
        next to others, has the heading of a document.
        """
        _check_documents(documents)
        _check_range("documents", len(documents), MOST_DOCUMENTS)
        for i, one in enumerate(documents):
            if len(documents) > 1 and HEADING.search(one):
                problem = "has the heading of a document, and cannot be merged with others"
                raise ConfigError(problem, f"documents.{i}")
        stripped = tuple(one.strip() for one in documents)
        instruction = f"{self.instruction.strip()}\n{FORM}"
        content = "\n\n".join(f"[DOCUMENT {i}]\n{one}" for i, one in enumerate(stripped, 1))
        text = f"[INSTRUCTION]\n{instruction}\n\n{content}\n\n[ANSWER]\n"
        return MergedPrompt(
            text=text,
            messages=(
                {"role": "system", "content": instruction},
                {"role": "user", "content": content},
            ),
            documents=stripped,
            tokens=len(tokenizer.encode(text)),
            max_length=self.max_length,
        )

    def group(
        self, tokenizer: Tokenizer, documents: Sequence[str], budget: int, max_documents: int = 8
    ) -> list[MergedPrompt]:
        """Requests for all documents, in their order.  A request has up to `max_documents` and
        `budget` tokens.  A document that is longer by itself, or has the heading of a document, is
        a request of its own.  Raises `ConfigError`.
        """
        _check_documents(documents)
        _check_range("max_documents", max_documents, MOST_DOCUMENTS)
        if budget < 1:
            raise ConfigError("is not valid", "budget", value=budget, allowed="1 or more")
        groups: list[MergedPrompt] = []
        for one in documents:
            joined = (*groups[-1].documents, one) if groups else ()
            if 0 < len(joined) <= max_documents and not any(map(HEADING.search, joined)):
                merged = self.make(tokenizer, joined)
                if merged.tokens <= budget:
                    groups[-1] = merged
                    continue
            groups.append(self.make(tokenizer, [one]))
        return groups


def _check_documents(documents: Sequence[str]) -> None:
    if isinstance(documents, str):
        raise ConfigError("is one text", "documents", allowed="a list of texts")
    for i, one in enumerate(documents):
        if not one.strip():
            raise ConfigError("is empty", f"documents.{i}", allowed="text")


def _check_range(name: str, found: int, most: int) -> None:
    if not 1 <= found <= most:
        near = min(max(found, 1), most)
        hint = f"nearest valid: {near}"
        raise ConfigError("is out of range", name, value=found, allowed=f"1 to {most:,}", hint=hint)
