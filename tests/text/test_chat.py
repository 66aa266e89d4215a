"""Chat templates: equal to what transformers renders, and unable to do harm."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from text_vocabularies import bpe_metadata

from flyweight.errors import RequestError
from flyweight.text import chat
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
        "{{ messages | dictsort }}",
        "{{ messages | xmlattr }}",
        "{{ 'abc' | truncate(1) }}",
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{% for a in b %}" * 101 + "{% endfor %}" * 101,
        "{% generation %}",
        "{{ raise_exception('\x1b[2J\r\n') }}",
        "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
        "x" * (1 << 21),
    ],
)
def test_a_template_that_fails_is_one_line(template: str) -> None:
    with pytest.raises(RequestError) as refused:
        render(template, USER, TOKENIZER)
    assert "chat template" in str(refused.value) and str(refused.value).isprintable()


def test_a_template_may_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MOST_SECONDS", 0.01)
    with pytest.raises(RequestError, match=r"takes more than 0\.01 seconds"):
        render("{% for i in range(100000) %}{{ i }}{% endfor %}" * 50, USER, TOKENIZER)


def test_the_generation_tag_renders_its_body_in_a_scope_of_its_own() -> None:
    template = """{% set x = 1 %}
{% for m in messages %}
{% generation %}
{% set x = 2 %}
{{ m.content }}{{ x }}
{% if loop.last %}{% break %}{% endif %}
{% endgeneration %}
{% endfor %}
{{ x }}"""
    assert render(template, USER, TOKENIZER).split() == ["hi2", "1"]


TOKENS = "{{ bos_token }} {{ eos_token }} {{ unk_token }} {{ pad_token }}"


def test_eos_token_is_eos_whatever_else_ends_a_text() -> None:
    metadata = bpe_metadata()
    pieces = metadata["tokenizer.ggml.tokens"]
    eos = metadata["tokenizer.ggml.eos_token_id"]
    ends = {"tokenizer.ggml.eot_token_id": eos - 1, "tokenizer.ggml.eom_token_id": eos + 1}
    others = {"tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.padding_token_id": 1}
    tokenizer = load_tokenizer(metadata | ends | others)
    assert tokenizer.eos_ids == (eos - 1, eos, eos + 1)
    assert render("{{ eos_token }}", USER, tokenizer) == pieces[eos] == "<|end|>"
    assert render(TOKENS, USER, tokenizer) == f"<|start|> <|end|> {pieces[0]} {pieces[1]}"
    past = metadata | {"tokenizer.ggml.padding_token_id": len(pieces)}  # in published files
    assert render(TOKENS, USER, load_tokenizer(past)) == "<|start|> <|end|>  "


def test_tokens_of_tokenizer_config(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "tiny-bpe", tmp_path / "model")
    config = {"bos_token": "<|end|>", "eos_token": {"content": "<|start|>"}}
    config |= {"unk_token": {"content": "<?>"}, "pad_token": "<.>"}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path / "model")
    assert render(TOKENS, USER, tokenizer) == "<|end|> <|start|> <?> <.>"


def test_rendering_changes_no_message() -> None:
    talk = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError):
        render("{% set _ = messages[0].update(role='x') %}", talk, TOKENIZER)
    assert talk == USER
