"""Content in parts: as parts to templates that read them, as one text of lines to the others."""

import pytest
from text_vocabularies import bpe_metadata

from flyweight.text.chat import render
from flyweight.text.messages import prepare_messages
from flyweight.text.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(bpe_metadata())
PARTS = [{"role": "user", "content": [{"type": "text", "text": t} for t in ("ab", "cd")]}]


def says(content: str, before: str = "") -> str:
    return before + "{% for m in messages %}<{{ m.role }}>" + content + "{% endfor %}"


READ = {  # templates that write the texts of parts side by side
    "a loop": says("{% for p in m.content %}{{ p.text }}{% endfor %}"),
    "by key": says("{% for p in m['content'] %}{{ p['text'] }}{% endfor %}"),
    "a variable": says("{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}"),
    "a variable set by get in a macro (Kimi-K2)": says(
        "{{ told(m) }}",
        "{% macro told(msg) %}{% set c = msg.get('content') %}{% if c is string %}{{ c }}"
        "{% elif c is not none %}{% for p in c %}{{ p['text'] }}{% endfor %}{% endif %}"
        "{% endmacro %}",
    ),
    "a macro's argument": says(
        "{{ told(m.content) }}",
        "{% macro told(what) %}{% for p in what %}{{ p.text }}{% endfor %}{% endmacro %}",
    ),
    "a macro's argument by name": says(
        "{{ told(what=m.content) }}",
        "{% macro told(what) %}{% for p in what %}{{ p.text }}{% endfor %}{% endmacro %}",
    ),
    "two variables": says(
        "{% set a = m['content'] or [] %}{% set b = a if a is iterable else [a] %}"
        "{% for p in b[0:] %}{{ p.text }}{% endfor %}"
    ),
    "a filter": says(
        "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}"
    ),
    "by number": says(
        "{% for i in range(m.content | length) %}{{ m.content[i].text }}{% endfor %}"
    ),
}
ONE = {  # templates that take one text
    "as it is": says("{{ m.content }}"),
    "split": says("{% for line in m.content.split('\n') %}{{ line }}|{% endfor %}"),
    "a variable split": says(
        "{% set c = m['content'].split('\n') %}{% for line in c %}{{ line }}|{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", READ)
def test_parts_reach_a_template_that_reads_them(name: str) -> None:
    assert render(READ[name], prepare_messages(PARTS, READ[name]), TOKENIZER) == "<user>abcd"


@pytest.mark.parametrize("name", ONE)
def test_parts_are_lines_for_a_template_that_takes_a_text(name: str) -> None:
    said = render(ONE[name], prepare_messages(PARTS, ONE[name]), TOKENIZER)
    assert said.replace("|", "\n").strip() == "<user>ab\ncd"
