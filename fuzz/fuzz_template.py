"""Fuzz target: a chat template, compiled and rendered over messages of every role.

An expression that computes one huge number cannot be stopped by anyone (`text.chat` says so): what
could spell one is left out, and a render may take a second.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

from flyweight.errors import RequestError
from flyweight.text.chat import render
from flyweight.text.tokenizer import load_tokenizer

FIXTURES = Path(__file__).parents[1] / "tests" / "data" / "text"
UNSTOPPABLE = re.compile(r"\*\*|[0-9]{4}")
SECONDS = 1.0
CALL = {"function": {"name": "look", "arguments": {"at": ["sky", 1, None]}}}
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello <|end|>"},
    {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "content": "blue", "name": "look"},
    {"role": "user", "content": "And now?"},
]
SMALL = (
    "{%- for m in messages if m.role != 'system' -%}{{ loop.index0 ~ m['content'] | trim }}"
    "{% if loop.last %}{% break %}{% endif %}{% endfor %}",
    "{% macro say(x) %}{{ x | tojson(indent=2) }}{% endmacro %}{{ say(tools) }}{{ bos_token }}",
    "{% set ns = namespace(n=1) %}{% generation %}{{ ns.n }}{% endgeneration %}",
    "{{ strftime_now('%Y') }}{% if tools is not none %}{{ raise_exception('no') }}{% endif %}",
    "{{ messages[1:] | selectattr('role', 'equalto', 'user') | list | length }}",
)


class TooSlow(BaseException):
    """A render that writes nothing while it works: known, and no finding."""


class Target:
    COVERED = ("text/chat.py",)

    def __init__(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(FIXTURES / "tiny-bpe")
        signal.signal(signal.SIGVTALRM, self._stop)

    def seeds(self) -> Iterator[bytes]:
        for name in ("plain", "qwen3"):
            yield (FIXTURES / "chat" / f"{name}.jinja").read_bytes()
        for template in SMALL:
            yield template.encode()

    def execute(self, data: bytes) -> bool:
        """Whether it is a template that renders."""
        template = data.decode("utf-8", "replace")
        if UNSTOPPABLE.search(template):
            return False
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            render(template, MESSAGES, self.tokenizer)
            return True
        except (RequestError, TooSlow):
            return False
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _stop(self, number: int, frame: object) -> None:
        raise TooSlow
