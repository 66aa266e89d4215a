"""Chat templates: messages to the text a model was trained to answer.

Invariant: the text is what transformers renders of the same template, messages and variables; a
template that fails or costs too much is a `RequestError` of one line, whatever it raises, and
changes nothing of the caller's.  Knows no model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any

from jinja2 import TemplateSyntaxError

from flyweight.errors import RequestError, nearest
from flyweight.text.codec import DEFAULT, WITH_TOOLS
from flyweight.text.messages import (
    REASONING,
    Message,
    add_reasoning_aliases,
    check,
    drop_none_fields,
    to_plain,
)
from flyweight.text.meter import USUAL, BudgetSpent, RenderBounds, RenderMeter
from flyweight.text.sandbox import Sandbox, TemplateRefusal, read_namespace
from flyweight.text.tokenizer import Tokenizer
from flyweight.validation.untrusted import one_line

MOST_TEMPLATE = 1 << 18  # characters; compiling one cannot be interrupted
FAILS = ": the chat template"
# Of a model that was taught no conversation: what is said, line by line, is the text to go on with.
PLAIN = (
    '{% for message in messages %}{{ message.content }}{{ "" if loop.last else "\\n" }}{% endfor %}'
)
MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # where the last message is cut, until it is found again


TRIED = (  # conversations one of which any template takes
    ({"role": "user", "content": "Hello"},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}),
)


class TemplateFault(RequestError):
    """A template that failed where it refused nothing: `kind` says how, `line` where."""

    def __init__(self, message: str, kind: str, line: int | None) -> None:
        super().__init__(message, "messages")
        self.kind, self.line = kind, line


def try_out(template: str, tokenizer: Tokenizer, bounds: RenderBounds = USUAL) -> None:
    """Raises `RequestError` where a template renders no conversation at all."""
    failed: RequestError | None = None
    for conversation in TRIED:
        try:
            render(template, conversation, tokenizer, bounds=bounds)
        except RequestError as error:
            failed = failed or error
        else:
            return
    assert failed is not None
    raise failed


def render(
    template: str,
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    continue_final_message: bool | str = False,
    bounds: RenderBounds = USUAL,
    **variables: object,
) -> str:
    """The prompt for `messages`, BOS and the like part of it; it ends where the assistant's answer
    begins, or inside the last message where that is to be continued (True: its content; a name:
    that field).  `variables` are the template's own: tools, documents, add_generation_prompt,
    enable_thinking.  Raises `RequestError`, also where it would cost more than `bounds`.
    """
    check(messages)
    going_on = bool(continue_final_message)
    if going_on and variables.get("add_generation_prompt"):
        raise RequestError(
            "and add_generation_prompt = True exclude each other; leave one of them out",
            "continue_final_message",
        )
    conversation = [
        add_reasoning_aliases(drop_none_fields(to_plain(message))) for message in messages
    ]
    cut = (
        ContinuationMark.of(conversation, continue_final_message)
        if continue_final_message
        else None
    )
    given = {
        "messages": conversation,
        "tools": None,
        "documents": None,
        "add_generation_prompt": not going_on,
        "bos_token": _get_piece(tokenizer, tokenizer.bos_id),
        "eos_token": _get_piece(tokenizer, tokenizer.eos_id),
        "unk_token": tokenizer.marks.unk_token,
        "pad_token": tokenizer.marks.pad_token,
    }
    given |= {name: to_plain(value) for name, value in variables.items()}
    text = _render(template, given, bounds)
    return text if cut is None else cut.apply(text)


def choose(templates: Mapping[str, str], given: str | None, *, tools: bool) -> str:
    """The template to use: one that is given as text or by name, else the model's own for tools,
    else its default.
    """
    if given is not None and (given in templates or "{" not in given):
        if given not in templates:
            raise RequestError(
                "is not valid",
                "chat_template",
                value=given,
                allowed=(
                    "the text of a template, or a name: "
                    f"{', '.join(templates) or 'this model has none'}{nearest(given, templates)}"
                ),
            )
        return templates[given]
    if given is not None:
        return given
    name = WITH_TOOLS if tools and WITH_TOOLS in templates else DEFAULT
    if name not in templates:
        named = f" (its templates have names: {', '.join(templates)})" if templates else ""
        raise RequestError(
            f": this model has no chat template{named}; give a prompt, or chat_template", "messages"
        )
    return templates[name]


@dataclass(frozen=True, slots=True)
class ContinuationMark:
    """Where a prompt ends that goes on with its last message: a mark put behind that message's text
    `words` is found again in what is rendered.
    """

    words: str

    @classmethod
    def of(cls, conversation: list[dict[str, Any]], field: bool | str) -> "ContinuationMark":
        """Marks the last message of `talk`."""
        name, last = field if isinstance(field, str) else "content", conversation[-1]
        content = last.get(name)
        if isinstance(content, list):
            parts = [p for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)]
            if parts:
                words = parts[-1]["text"]
                parts[-1]["text"] += MARK
                return cls(words)
        if not isinstance(content, str):
            raise RequestError(
                f": the last message has no text in {name!r}", "continue_final_message"
            )
        alike = [key for key in REASONING if last.get(key) == content] if name in REASONING else []
        for key in alike or [name]:
            last[key] += MARK
        return cls(content)

    def apply(self, text: str) -> str:
        """`text` up to the mark."""
        at = text.rfind(MARK.strip())
        if at < 0 or self.words.strip() not in text:
            raise RequestError(
                ": the chat template leaves out the last message", "continue_final_message"
            )
        return text[:at] if text.startswith(MARK, at) else text[:at].rstrip()


def _render(template: str, given: Mapping[str, Any], bounds: RenderBounds) -> str:
    if len(template) > MOST_TEMPLATE:
        raise RequestError(
            f"{FAILS} has {len(template)} characters (max {MOST_TEMPLATE})", "messages"
        )
    meter = RenderMeter(read_namespace, bounds.seconds)
    try:
        meter.start()
        meter.most = bounds.limit_characters(meter.weigh(given))
        pieces = Sandbox(meter).from_string(template).generate(**given)
        return "".join(_limit_pieces(pieces, meter))
    except BudgetSpent as error:
        raise RequestError(f"{FAILS} {error}", "messages") from None
    except (RecursionError, MemoryError):
        raise RequestError(f"{FAILS} does not end", "messages") from None
    except Exception as error:  # all that runs in there is the template's
        reason = one_line(str(error)) or type(error).__name__
        if isinstance(error, TemplateRefusal):
            raise RequestError(f"{FAILS} fails: {reason}", "messages") from None
        raise TemplateFault(
            f"{FAILS} fails: {reason}", type(error).__name__, _find_error_line(error)
        ) from None


def _find_error_line(error: BaseException) -> int | None:
    """The line of a template that an error comes from."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    steps = extract_tb(error.__traceback__)
    return next((step.lineno for step in reversed(steps) if step.filename == "<template>"), None)


def _limit_pieces(pieces: Iterator[str], meter: RenderMeter) -> Iterator[str]:
    """The pieces, until they are too many or too late."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > meter.most:
            raise meter.make_error(size)
        meter.tick()
        yield piece


def _get_piece(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token)
