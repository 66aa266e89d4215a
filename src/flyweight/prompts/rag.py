"""Prompts for questions on a context: [CONTEXT], [QUESTION], [INSTRUCTION], [ANSWER].

Invariant: the passages in a prompt have at most the budget's tokens, in the order of their rank,
each whole; what is left out is counted, and the prompt says so.  Knows no retriever and no engine.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from flyweight.errors import ConfigError
from flyweight.params.structured import MOST_CHOICES, StructuredOutputs
from flyweight.text.tokenizer import Tokenizer

NOT_FOUND = "not found"
SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True)
class RagPrompt:
    """A prompt with what it was made of.  `context_tokens` are those of the context, `used` and
    `left_out` the numbers of passages, best first, from 0.
    """

    text: str
    messages: tuple[dict[str, str], ...]
    passages: tuple[str, ...]
    used: tuple[int, ...]
    left_out: tuple[int, ...]
    context_tokens: int
    budget: int | None
    not_found: str

    def describe(self) -> str:
        """A line for people: how much of the context is in the prompt."""
        total = len(self.used) + len(self.left_out)
        limit = "" if self.budget is None else f" of {self.budget}"
        return (
            f"{len(self.used)} of {total} passages, {len(self.left_out)} left out, "
            f"{self.context_tokens}{limit} tokens"
        )

    def list_sentences(self) -> list[str]:
        """The sentences of the passages in the prompt, each once, on one line."""
        parts = (part for passage in self.passages for part in SENTENCES.split(passage))
        sentences = (" ".join(part.split()) for part in parts)
        return list(dict.fromkeys(one for one in sentences if one))

    def make_choice(self, answers: Sequence[str] = ()) -> StructuredOutputs:
        """Allows one of these answers, or of the sentences of the context, or "not found"."""
        allowed = list(dict.fromkeys([*(answers or self.list_sentences()), self.not_found]))
        if len(allowed) > MOST_CHOICES:
            raise ConfigError(
                "are too many", "answers", value=len(allowed), allowed="4,095 or fewer"
            )
        return StructuredOutputs(choice=allowed)

    def make_grammar(self) -> StructuredOutputs:
        """Allows one or two sentences of the context, or "not found"."""
        quotes = [json.dumps(one, ensure_ascii=False) for one in self.list_sentences()]
        refusal = json.dumps(self.not_found, ensure_ascii=False)
        if not quotes:
            return StructuredOutputs(grammar=f"root ::= {refusal}\n")
        rules = f'root ::= {refusal} | quote (" " quote)?\nquote ::= {" | ".join(quotes)}\n'
        return StructuredOutputs(grammar=rules)


@dataclass(frozen=True, slots=True)
class RagTemplate:
    """The sections of a prompt.  With `instruction_first`, prompts with other contexts and
    questions begin with the same text, so that its blocks are found in the prefix cache.
    """

    instruction: str = (
        "Answer from the context alone, in one or two sentences. "
        'If the context does not have the answer, write "{not_found}".'
    )
    not_found: str = NOT_FOUND
    instruction_first: bool = False

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ConfigError("is empty", "instruction", allowed="text")
        if not self.not_found.strip():
            raise ConfigError("is empty", "not_found", allowed="text, such as 'not found'")

    def make(
        self,
        tokenizer: Tokenizer,
        question: str,
        passages: Sequence[str],
        budget: int | None = None,
    ) -> RagPrompt:
        """The prompt of a question.  `passages` are best first; one that does not fit into the
        rest of `budget` tokens is left out, and a later one may take its place.  Raises
        `ConfigError` where the question is empty, or the budget holds no passage.
        """
        self._check(question, passages, budget)
        used = pack(tokenizer, passages, budget)
        left_out = tuple(i for i in range(len(passages)) if i not in used)
        if passages and not used:
            least = min(count_context(tokenizer, [one], len(passages) - 1) for one in passages)
            raise ConfigError(
                "holds none of the passages", "budget", value=budget, allowed=f"{least} or more"
            )
        chosen, asked = tuple(passages[i].strip() for i in used), question.strip()
        context = format_context(chosen, len(left_out))
        instruction = self.instruction.replace("{not_found}", self.not_found)
        return RagPrompt(
            text=self._write(context, asked, instruction),
            messages=(
                {"role": "system", "content": instruction},
                {
                    "role": "user",
                    "content": f"[CONTEXT]\n{context}\n\n[QUESTION]\n{question.strip()}",
                },
            ),
            passages=chosen,
            used=used,
            left_out=left_out,
            context_tokens=len(tokenizer.encode(context, add_special=False)),
            budget=budget,
            not_found=self.not_found,
        )

    def _check(self, question: str, passages: Sequence[str], budget: int | None) -> None:
        if not question.strip():
            raise ConfigError("is empty", "question", allowed="text")
        if isinstance(passages, str):
            raise ConfigError("is one text", "passages", allowed="a list of texts, best first")
        for i, passage in enumerate(passages):
            if not passage.strip():
                raise ConfigError("is empty", f"passages.{i}", allowed="text")
        if budget is not None and budget < 1:
            raise ConfigError("is not valid", "budget", value=budget, allowed="1 or more")

    def _write(self, context: str, question: str, instruction: str) -> str:
        sections = {"CONTEXT": context, "QUESTION": question, "INSTRUCTION": instruction}
        order = sorted(sections, key=lambda name: self.instruction_first and name != "INSTRUCTION")
        parts = [f"[{name}]\n{sections[name]}" for name in order]
        return "\n\n".join([*parts, "[ANSWER]\n"])


def pack(tokenizer: Tokenizer, passages: Sequence[str], budget: int | None) -> tuple[int, ...]:
    """The numbers of the passages that fit, in the order of their rank.  The line that counts what
    is left out is part of the budget.
    """
    if budget is None or count_context(tokenizer, passages, 0) <= budget:
        return tuple(range(len(passages)))
    used: list[int] = []
    for i in range(len(passages)):
        chosen = [passages[j].strip() for j in (*used, i)]
        if count_context(tokenizer, chosen, len(passages) - len(chosen)) <= budget:
            used.append(i)
    return tuple(used)


def count_context(tokenizer: Tokenizer, passages: Sequence[str], left_out: int) -> int:
    return len(tokenizer.encode(format_context(passages, left_out), add_special=False))


def format_context(passages: Sequence[str], left_out: int) -> str:
    """Passages with empty lines between them, then how many are left out."""
    total = len(passages) + left_out
    note = [f"({left_out} of {total} passages left out)"] if left_out else []
    return "\n\n".join([*(one.strip() for one in passages), *note])
