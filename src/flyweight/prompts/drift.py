"""Template drift: a prompt is not the beginning of the prompt of the next turn, so that its K/V
blocks are not found.  Templates drift where they remove reasoning, strip spaces, write the date, or
end a prompt with text that they leave out of an answer of the history.

Invariant: turns are compared as the engine has them: the prompt's tokens, then the answer's.
Answers are those of the file; where the last message has none, one is made up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flyweight.engine.prefix import count_common
from flyweight.errors import RequestError
from flyweight.prompts.rendering import PromptRenderer, RenderedPrompt
from flyweight.prompts.requests import SampleRequest
from flyweight.text.messages import REASONING, Message, join_text

ANSWER = {"role": "assistant", "content": "Yes."}
FOLLOWING = {"role": "user", "content": "Go on."}
SHOWN = 6  # tokens on each side


@dataclass(frozen=True, slots=True)
class TemplateDrift:
    """The prompt up to message `turn` parts from the next turn's at token `token`; `lost` of its
    tokens are computed again.  `expected` is the text the next turn would need to go on with.
    """

    turn: int
    token: int
    lost: int
    expected: str
    got: str


def find_drift(renderer: PromptRenderer, request: SampleRequest) -> Iterator[TemplateDrift]:
    """The turns of a conversation that are not a beginning of the next one.  Turns that the
    template refuses are skipped.
    """
    messages = list(request.messages)
    if not messages or not renderer.template:
        return
    if messages[-1].get("role") != "assistant":
        messages.append(ANSWER)
    messages.append(FOLLOWING)
    for turn, message in enumerate(messages):
        if turn == 0 or message.get("role") != "assistant":
            continue
        stop = next(i for i in range(turn, len(messages)) if messages[i]["role"] != "assistant") + 1
        try:
            asked = renderer.render(_cut(request, messages[:turn]))
            later = renderer.render(_cut(request, messages[:stop]))
        except RequestError:
            continue
        found = _compare(turn, asked, later, _read_answer(message, later.text))
        if found is not None:
            yield found


def _cut(request: SampleRequest, messages: Sequence[Message]) -> SampleRequest:
    return SampleRequest.of_messages(request.where, messages, request.tools)


def _read_answer(message: Message, later: str) -> str:
    """What the model wrote, as far as the file says.  Reasoning that the next turn shows has marks
    of the template around it, so that only the prompt before it can be compared.
    """
    answer = join_text(message.get("content")) or ""
    found = (message.get(name) for name in REASONING)
    reasoning = next((text for text in found if isinstance(text, str) and text.strip()), "")
    if not reasoning:
        return answer
    return "" if reasoning.strip() in later else reasoning + answer


def _compare(
    turn: int, asked: RenderedPrompt, later: RenderedPrompt, answer: str
) -> TemplateDrift | None:
    """Where the known tokens part from those of the next turn.  Spaces that the template writes
    between a prompt and an answer are the model's to write.
    """
    begun = asked.text
    if later.text.startswith(begun):
        rest = later.text[len(begun) :]
        begun += rest[: len(rest) - len(rest.lstrip())] if not answer[:1].isspace() else ""
    known = tuple(asked.tokenizer.encode(begun + answer, add_special=asked.add_special))
    same = count_common(known, later.ids)
    if later.text.startswith(begun + answer) or same == len(known):
        return None
    decode = asked.tokenizer.decode
    expected = decode(known[same : same + SHOWN], False)
    got = decode(later.ids[same : same + SHOWN], False)
    return TemplateDrift(turn, same, len(known) - same, expected, got)
