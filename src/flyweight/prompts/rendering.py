"""A request as the engine gets it: its text through the chat template, its tokens, and where each
of its texts is.

Invariant: the tokens are those that `LLM` and the server make of the same request.  Knows no
engine.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from flyweight.prompts.requests import SampleRequest
from flyweight.requests.preparing import render_conversation
from flyweight.text.tokenizer import Tokenizer

Span = tuple[int, int]


@dataclass(frozen=True)
class RenderedPrompt:
    """`places` has the characters of each text, None where the template does not show it."""

    text: str
    ids: tuple[int, ...]
    places: tuple[Span | None, ...]
    tokenizer: Tokenizer
    add_special: bool

    @cached_property
    def starts(self) -> list[int] | None:
        """The byte of the text that each token begins at, BOS at the first; None where pieces do
        not spell the text, as where a tokenizer normalises it.
        """
        pieces = [self.tokenizer.token_bytes(token, special=True) for token in self.ids]
        lengths = [0, *accumulate(map(len, pieces))]
        raw, spelled = self.text.encode("utf-8", "replace"), b"".join(pieces)
        before = len(spelled) - len(raw)  # BOS, and a space that some tokenizers begin with
        if before < 0 or spelled[before:] != raw:
            return None
        return [max(0, start - before) for start in lengths[:-1]]

    def count(self, stop: int) -> int:
        """Tokens that begin in the first `stop` characters."""
        if stop >= len(self.text):
            return len(self.ids)
        begun = self.text[:stop]
        if self.starts is not None:
            return bisect_left(self.starts, len(begun.encode("utf-8", "replace")))
        return len(self.tokenizer.encode(begun, add_special=self.add_special))


class PromptRenderer:
    """Makes prompts for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._made: dict[tuple[str, tuple[str, ...]], RenderedPrompt] = {}
        self._copies: bool | None = None  # whether texts can be replaced in the prompt

    @property
    def template(self) -> str:
        """The chat template; "" where the model has none."""
        return self.tokenizer.chat_template or ""

    def render(self, request: SampleRequest) -> RenderedPrompt:
        """The prompt of a request, which is kept.  Raises `RequestError`."""
        key = request.where, request.texts
        if key not in self._made:
            self._made[key] = self._render(request)
        return self._made[key]

    def encode_changed(self, request: SampleRequest, changed: SampleRequest) -> tuple[int, ...]:
        """The tokens of a request with other texts.  Where the template writes texts unchanged,
        which the first one shows, they are put into the prompt: rendering takes longer.
        """
        if changed.texts == request.texts or not request.messages:
            return self.render(changed).ids
        if self._copies is None:
            whole = self.render(changed).text
            self._copies = _replace_texts(self.render(request), changed.texts) == whole
        text = _replace_texts(self.render(request), changed.texts) if self._copies else None
        if text is None:
            return self.render(changed).ids
        return tuple(self.tokenizer.encode(text, not self.tokenizer.marks.templates))

    def _render(self, request: SampleRequest) -> RenderedPrompt:
        if not request.messages:
            (text,) = request.texts
            ids = tuple(self.tokenizer.encode(text))
            return RenderedPrompt(text, ids, ((0, len(text)),), self.tokenizer, True)
        tools = list(request.tools) or None
        made = render_conversation(
            self.tokenizer, request.messages, tools=tools, add_generation_prompt=True
        )
        text, ids = made["prompt"], tuple(made["prompt_token_ids"])
        bare = not self.tokenizer.marks.templates
        places = tuple(_locate(text, request.texts))
        return RenderedPrompt(text, ids, places, self.tokenizer, bare)


def _locate(text: str, parts: tuple[str, ...]) -> list[Span | None]:
    """Where each part is: behind the part before it, else anywhere, as templates may move a system
    message into a later turn.  They may strip the spaces around a part.
    """
    found: list[Span | None] = []
    begin = 0
    for part in parts:
        wanted = part if part in text else part.strip()
        at = text.find(wanted, begin) if wanted else begin
        at = text.find(wanted) if at < 0 else at
        found.append(None if at < 0 else (at, at + len(wanted)))
        begin = at + len(wanted) if at >= begin else begin
    return found


def _replace_texts(prompt: RenderedPrompt, texts: Sequence[str]) -> str | None:
    """The prompt with other texts at the same places; None where one is not found."""
    known = [place for place in prompt.places if place is not None]
    if len(known) < len(texts):
        return None
    parts, at = list[str](), 0
    for (start, stop), text in sorted(zip(known, texts, strict=True)):
        if start < at:
            return None
        parts += [prompt.text[at:start], text]
        at = stop
    return "".join([*parts, prompt.text[at:]])
