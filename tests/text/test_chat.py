"""Chat templates: equal to what transformers renders, and unable to do harm."""

import json
from pathlib import Path
from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.text.chat import render
from flyweight.text.tokenizer import load_tokenizer

FIXTURES = Path(__file__).parents[1] / "data" / "text"
TOKENIZER = load_tokenizer(FIXTURES / "tiny-bpe")  # <|start|> and <|end|>
CASES = json.loads((FIXTURES / "chat" / "golden.json").read_text(encoding="utf-8"))
CONFIGS = {
    "qwen2.5": "tokenizer-qwen2/qwen2.5_tokenizer_config.json",
    "phi3": "tokenizers-hf-json/phi-3-mini/tokenizer_config.json",
}
USER = [{"role": "user", "content": "hi"}]


def same(template: str, case: dict[str, Any]) -> None:
    assert render(template, case["messages"], TOKENIZER, **case["variables"]) == case["text"]


@pytest.mark.parametrize("name", ["qwen3", "plain"])
def test_equal_to_transformers(name: str) -> None:
    template = (FIXTURES / "chat" / f"{name}.jinja").read_text(encoding="utf-8")
    cases = [case for case in CASES if case["template"] == name]
    assert len(cases) >= 4
    for case in cases:
        same(template, case)


@pytest.mark.parametrize("name", CONFIGS)
def test_more_templates_equal_to_transformers(data, name: str) -> None:
    template = json.loads(data(CONFIGS[name]).read_text(encoding="utf-8"))["chat_template"]
    for case in CASES:
        if case["template"] == name:
            same(template, case)


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ missing.attribute }}",
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% include 'other' %}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ 'x' * 10 ** 15 }}",
    ],
)
def test_a_template_that_fails_is_one_line(template: str) -> None:
    with pytest.raises(RequestError) as refused:
        render(template, USER, TOKENIZER)
    assert "chat template" in str(refused.value) and "\n" not in str(refused.value)


def test_rendering_changes_no_message() -> None:
    talk = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError):
        render("{% set _ = messages[0].update(role='x') %}", talk, TOKENIZER)
    assert talk == USER
