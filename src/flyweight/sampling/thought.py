"""The end of a thought whose budget of tokens is spent: vLLM's `thinking_token_budget`.

Invariant: a function of a row's own tokens, guesses among them, so that drafts, forks and
preemption need not be told to it; only where the closing mark may be due are the thought's tokens
read.  Knows marks by their bytes, and of the vocabulary only the tokens that hold some of them.
"""

from collections.abc import Sequence

from flyweight.types import ThinkingBudget

LOOKED_AT = 64  # tokens of an answer among which a thought may begin
OTHER = b"\xff"  # stands for a token without any of a mark's bytes: no text has it
BLANKS = b" \t\r\n"


def forced(thought: ThinkingBudget, tokens: Sequence[int], prompt: int) -> int | None:
    """The one token that may follow `tokens`, of which so many are the prompt's; None where any
    may.
    """
    if len(tokens) < prompt - thought.spent + thought.budget:
        return None
    found = (prompt - thought.spent, b"") if thought.opened else _begun(thought, tokens, prompt)
    if found is None:
        return None
    begun, text = found
    end = max(begun + thought.budget, prompt)
    place = len(tokens) - end
    if not 0 <= place < len(thought.ids):
        return None
    text += _text(thought, tokens[max(begun, prompt) : end])
    return None if thought.closing in text else thought.ids[place]


def _begun(thought: ThinkingBudget, tokens: Sequence[int], prompt: int) -> tuple[int, bytes] | None:
    """Where a thought begins that the answer opens itself, as its reader finds it, and what of it
    the opening's last token holds; None where it has none, or none yet.
    """
    text = b""
    for i, token in enumerate(tokens[prompt : prompt + LOOKED_AT], prompt):
        text = (text + thought.parts.get(token, OTHER)).lstrip(BLANKS)
        if text.startswith(thought.opening):
            return i + 1, text[len(thought.opening) :]
        if not thought.opening.startswith(text):
            return None
    return None


def _text(thought: ThinkingBudget, tokens: Sequence[int]) -> bytes:
    return b"".join([thought.parts.get(token, OTHER) for token in tokens])
