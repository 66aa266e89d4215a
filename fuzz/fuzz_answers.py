"""Fuzz target: an answer, split into reasoning, content and calls, in each model's format.

The first byte says how it is read, the rest is its text; read at once and letter by letter it must
come to the same, and where there is no call every letter of it is content.
"""

from collections.abc import Iterator
from pathlib import Path

from flyweight.text.tools.deltas import ParsedAnswer
from flyweight.text.tools.formats import HERMES, JSON, LLAMA, MISTRAL, THINK
from flyweight.text.tools.parser import AnswerFormat, AnswerParser

NAMES = frozenset({"now", "get"})
HOWS = [
    AnswerFormat(form, NAMES, reasoning=marks, opened=opened)
    for form in (HERMES, LLAMA, MISTRAL, JSON)
    for marks, opened in ((None, False), (THINK, False), (THINK, True))
]
CALL = '{"name": "get", "arguments": {"a": [1, -2.5e3, "\\u00e9\\n", null]}}'
TEXTS = (
    f"I look.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>",
    f'{CALL}; {{"parameters": {{}}, "name": "now"}}',
    f"[TOOL_CALLS][{CALL}, {CALL}]",
    '[TOOL_CALLS]get[ARGS]{"a": true}[TOOL_CALLS]now[CALL_ID]x[ARGS]{}',
    f"<think>hm</think>\n\n[{CALL}]",
    f"<|python_tag|>{CALL}",
)


class Target:
    COVERED = ("text/tools/[!_fg]*.py",)

    def __init__(self, folder: Path) -> None:
        pass

    def seeds(self) -> Iterator[bytes]:
        """Every text with the reading that finds a call in it."""
        for text in TEXTS:
            for how in range(len(HOWS)):
                seed = bytes([how]) + text.encode()
                if self.execute(seed):
                    yield seed

    def execute(self, data: bytes) -> bool:
        """Whether there is a call."""
        how = HOWS[(data[0] if data else 0) % len(HOWS)]
        text = data[1:].decode("utf-8", "replace")
        cut = bool(data) and data[0] >= 128
        found = read(how, [text], cut)
        assert read(how, list(text), cut) == found
        if how.reasoning is None and not found.calls:
            left_out = text[len(found.content) :]
            assert text.startswith(found.content) and (cut or not left_out)
            if left_out:  # what may have been the beginning of a call, as the answer was cut
                trigger, begun = how.calls.trigger, left_out.lstrip()
                assert begun.startswith(trigger) or trigger.startswith(begun)
        return bool(found.calls)


def read(how: AnswerFormat, pieces: list[str], cut: bool) -> ParsedAnswer:
    parser = AnswerParser(how)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return ParsedAnswer.of(deltas + parser.finish(cut))
