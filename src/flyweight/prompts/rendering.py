"""A request as the engine gets it: its text through the chat template, its tokens, and where each
of its texts is.

Invariant: the tokens are those that `LLM` and the server make of the same request.  Knows no
engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.prompts.requests import SampleRequest
from flyweight.requests.preparing import render_conversation
from flyweight.text.tokenizer import Tokenizer

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """`places` has the characters of each text, None where the template does not show it."""

    text: str
    ids: tuple[int, ...]
    places: tuple[Span | None, ...]
    tokenizer: Tokenizer
    add_special: bool

    def count(self, stop: int) -> int:
        """Tokens of the first `stop` characters."""
        if stop >= len(self.text):
            return len(self.ids)
        return len(self.tokenizer.encode(self.text[:stop], add_special=self.add_special))


class PromptRenderer:
    """Makes prompts for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    def template(self) -> str:
        """The chat template; "" where the model has none."""
        return self.tokenizer.chat_template or ""

    def render(self, request: SampleRequest, *, answered: bool = False) -> RenderedPrompt:
        """The prompt of a request; `answered`: its last message is the answer, which is complete.
        Raises `RequestError`.
        """
        if not request.messages:
            text, bare = request.texts[0], True
            ids = self.tokenizer.encode(text)
        else:
            bare = not self.tokenizer.marks.templates
            made = self._apply(request, answered)
            text, ids = made["prompt"], made["prompt_token_ids"]
        places = tuple(_locate(text, request.texts)) if request.messages else ((0, len(text)),)
        return RenderedPrompt(text, tuple(ids), places, self.tokenizer, bare)

    def _apply(self, request: SampleRequest, answered: bool) -> Mapping[str, Any]:
        tools = list(request.tools) or None
        return render_conversation(
            self.tokenizer, request.messages, tools=tools, add_generation_prompt=not answered
        )


def _locate(text: str, parts: tuple[str, ...]) -> list[Span | None]:
    """Where each part is, one after the other; templates may strip spaces around it."""
    found: list[Span | None] = []
    begin = 0
    for part in parts:
        wanted = part if part in text[begin:] else part.strip()
        at = text.find(wanted, begin) if wanted else begin
        found.append(None if at < 0 else (at, at + len(wanted)))
        begin = begin if at < 0 else at + len(wanted)
    return found
