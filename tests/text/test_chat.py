"""Chat templates: equal to what transformers renders, and unable to do harm."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
from text_vocabularies import bpe_metadata

from flyweight.errors import RequestError
from flyweight.requests.preparing import render_conversation
from flyweight.text.chat import choose, render
from flyweight.text.messages import OPTIONS, OWN, prepare_messages, require_text
from flyweight.text.meter import LEAST_CHARACTERS, MOST_CHARACTERS, RenderBounds
from flyweight.text.tokenizer import load_tokenizer
from flyweight.weights.gguf import read_gguf

FIXTURES = Path(__file__).parents[1] / "data" / "text"
TOKENIZER = load_tokenizer(FIXTURES / "tiny-bpe")  # <|start|> and <|end|>
GOLDEN = json.loads((FIXTURES / "chat" / "golden.json").read_text(encoding="utf-8"))
TALKS = GOLDEN["talks"]
HERE = ("plain", "constructs", "turns", "qwen3")
CONFIGS = {
    "qwen2.5": "tokenizer-qwen2/qwen2.5_tokenizer_config.json",
    "phi3": "tokenizers-hf-json/phi-3-mini/tokenizer_config.json",
}
GGUF = {"phi3 gguf": "tokenizers-ggml-vocab/ggml-vocab-phi-3.gguf"}
USER = [{"role": "user", "content": "hi"}]
Data = Callable[[str], Path]


def check(name: str, template: str, talk: str) -> None:
    """Equal to transformers' text; where that refused, so do we."""
    expected, case = GOLDEN["texts"][name][talk], TALKS[talk]
    if expected is None:
        with pytest.raises(RequestError):
            render(template, case["messages"], TOKENIZER, **case["variables"])
    else:
        assert render(template, case["messages"], TOKENIZER, **case["variables"]) == expected


def test_every_template_is_compared() -> None:
    assert set(GOLDEN["texts"]) == {*HERE, *CONFIGS, *GGUF}
    assert all(set(texts) == set(TALKS) for texts in GOLDEN["texts"].values())
    assert len(TALKS) == 26


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", HERE)
def test_equal_to_transformers(name: str, talk: str) -> None:
    check(name, (FIXTURES / "chat" / f"{name}.jinja").read_text(encoding="utf-8"), talk)


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", CONFIGS)
def test_templates_of_tokenizer_config(data: Data, name: str, talk: str) -> None:
    config = json.loads(data(CONFIGS[name]).read_text(encoding="utf-8"))
    check(name, config["chat_template"], talk)


@pytest.mark.parametrize("name", GGUF)
def test_templates_of_gguf(data: Data, name: str) -> None:
    template = load_tokenizer(read_gguf(data(GGUF[name])).metadata).chat_template
    assert template is not None
    for talk in TALKS:
        check(name, template, talk)


def test_every_template_of_the_corpora_is_known(data: Data) -> None:
    root = data("README.md").parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*config.json")
        if "chat_template" in json.loads(path.read_text(encoding="utf-8"))
    }
    found |= {path.relative_to(root).as_posix() for path in root.rglob("*.jinja")}
    found |= {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.gguf")
        if any(key.startswith("tokenizer.chat_template") for key in read_gguf(path).metadata)
    }
    qwen3 = "tokenizer-qwen2/qwen3_tokenizer_config.json"  # its template is among the fixtures
    assert found == {*CONFIGS.values(), *GGUF.values(), qwen3}


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


ENDLESS = [
    "{% for i in range(100000) %}{{ i }}{% endfor %}" * 50,
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(10 ** 12) %}{% endfor %}",
    "{% for i in range(99999) if range(99999) | sum == 1 %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{% for n in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% endset %}",
    "{% set r = range(99999) | list %}{% for i in r if i in r and -i in r %}{% endfor %}" * 9,
    "{{ range(99999) | map('string') | map('length') | sum }}" * 999,
]
HUGE = [
    "{{ 'a' * 10 ** 9 }}",
    "{{ ['a'] * 10 ** 9 }}",
    "{{ ('a' * 10 ** 7) ~ ('a' * 10 ** 7) }}",
    "{% set x = 'a' * 10 ** 6 %}{{ ([x] * 100000) | join }}",
    "{% set x = 'a' * 10 ** 6 %}{{ [x] * 100000 }}",
    "{% set x = 'a' * 10 ** 6 %}{{ ([x] * 100000) | string }}",
    "{% set x = 'a' * 10 ** 6 %}{{ ([x] * 100000) | tojson }}",
    "{% set x = 'a' * 10 ** 6 %}{{ x.join([x] * 1000) }}",
    "{% set x = 'a' * 10 ** 6 %}{{ x.replace('a', x) }}",
    "{% set x = 'a' * 10 ** 6 %}{{ x | replace('a', x) }}",
    "{% set x = 'a' * 10 ** 6 %}{{ x.replace('', x) }}",
    "{% set x = 'a' * 10 ** 6 %}{{ ('%(x)s' * 10000) % {'x': x} }}",
    "{% set x = 'a' * 10 ** 6 %}{{ ('{0}' * 10000).format(x) }}",
    "{% set x = 'a' * 10 ** 6 %}{{ x.translate({97: x}) }}",
    "{% set x = '\\t' * 10 ** 6 %}{{ x.expandtabs(10 ** 6) }}",
    "{% set x = '\\n' * 10 ** 6 %}{{ x | indent(10 ** 6, true, true) }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ 'a'.center(10 ** 9) }}{{ 'a'.ljust(10 ** 9) }}{{ 'a'.zfill(10 ** 9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ [1] | tojson(indent=10 ** 9) }}",
    "{{ [1] | batch(10 ** 9, 0) | list }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 1.5 | round(10 ** 9) }}",
    "{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{{ n.x }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "{% set x = 'a' * 10 ** 6 %}{% macro m() %}" + "{{ x }}" * 99 + "{% endmacro %}{{ m() }}",
    "{% set x = 'a' * 10 ** 6 %}{{ range(99999) | map('default', x) | list | length }}"
    "{% for i in range(99999) %}{{ x }}{% endfor %}",
    "{{ messages | pprint }}" * 9 + "{% set x = messages * 10 ** 6 %}{{ x | pprint }}",
]
RUN = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
from flyweight.errors import RequestError
from flyweight.text.chat import render
from flyweight.text.meter import RenderBounds
from flyweight.text.tokenizer import load_tokenizer
tokenizer, talk = load_tokenizer(sys.argv[1]), [{"role": "user", "content": "hi"}]
for template in json.load(sys.stdin):
    try:
        print("rendered", len(render(template, talk, tokenizer, bounds=RenderBounds(0.3))))
    except RequestError as error:
        print(error)
    assert render("{{ messages[0].content }}", talk, tokenizer) == "hi"
"""


def test_what_costs_too_much_is_refused_and_leaves_the_process_well() -> None:
    """In a process of 1.5 GiB, so that what would be huge cannot have been made."""
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(FIXTURES / "tiny-bpe")],
        input=json.dumps(ENDLESS + HUGE),
        capture_output=True,
        text=True,
    )
    lines = run.stdout.splitlines()
    assert run.returncode == 0 and len(lines) == len(ENDLESS + HUGE), run.stderr
    why = ("takes more", "writes more", "does not end", "calls ", "makes a number", "fails: Range")
    wrong = [
        (template, line)
        for template, line in zip(ENDLESS + HUGE, lines, strict=True)
        if not any(word in line for word in why)
    ]
    assert wrong == []


def test_long_conversations_are_rendered() -> None:
    """The limits are far from what people say."""
    talk = [{"role": role, "content": "word " * 4000} for role in ("user", "assistant")] * 50
    template = (FIXTURES / "chat" / "qwen3.jinja").read_text(encoding="utf-8")
    assert len(render(template, talk, TOKENIZER, bounds=RenderBounds(60.0))) > 2_000_000


def test_a_template_may_not_take_for_ever() -> None:
    with pytest.raises(RequestError, match=r"takes more than 0\.01 seconds"):
        render(ENDLESS[0], USER, TOKENIZER, bounds=RenderBounds(0.01))


def test_what_is_written_is_bounded_by_what_was_given() -> None:
    """A short conversation may become as long as a template; beyond, every character counts."""
    template = "{% for i in range(times) %}{{ messages[0].content }}{% endfor %}"

    def written(length: int, times: int, growth: int) -> int:
        talk = [{"role": "user", "content": "a" * length}]
        return len(
            render(template, talk, TOKENIZER, times=times, bounds=RenderBounds(60.0, growth))
        )

    assert written(10, 20_000, 1) == 200_000
    with pytest.raises(RequestError, match=f"writes more than {LEAST_CHARACTERS} characters"):
        written(10, 27_000, 1)
    assert written(100_000, 15, 16) == 1_500_000
    with pytest.raises(RequestError, match=r"writes more than 160\d\d\d\d characters"):
        written(100_000, 17, 16)
    with pytest.raises(RequestError, match=f"writes more than {MOST_CHARACTERS} characters"):
        written(1_000_000, 17, 10**6)


def test_no_switch_is_taken_for_an_argument() -> None:
    """A switch of the client's is never an argument of ours by its name."""
    ours = {*signature(render).parameters, *signature(render_conversation).parameters}
    assert ours - {*OWN, *OPTIONS, "variables"} == set()


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


NAMED = {"default": "d {{ messages }}", "tool_use": "t {{ messages }}", "rag": "r"}


def test_which_template_is_used() -> None:
    assert choose(NAMED, None, tools=False) == NAMED["default"]
    assert choose(NAMED, None, tools=True) == NAMED["tool_use"]
    assert choose({"default": "d"}, None, tools=True) == "d"
    assert choose(NAMED, "rag", tools=True) == "r"
    assert choose({}, "{{ own }}", tools=False) == "{{ own }}"
    with pytest.raises(
        RequestError, match=r"chat_template = 'rga' is not valid; .*\(did you mean 'rag'"
    ):
        choose(NAMED, "rga", tools=False)
    with pytest.raises(RequestError, match="no chat template; give a prompt"):
        choose({}, None, tools=False)
    with pytest.raises(RequestError, match=r"have names: rag"):
        choose({"rag": "r"}, None, tools=False)


def test_named_templates_of_every_source(tmp_path: Path) -> None:
    gguf = {f"tokenizer.chat_template{'.' * bool(n)}{n}": f"{n}!" for n in ("", "tool_use")}
    marks = load_tokenizer(bpe_metadata() | gguf).marks
    assert marks.templates == {"default": "!", "tool_use": "tool_use!"}
    shutil.copytree(FIXTURES / "tiny-bpe", tmp_path / "model")
    listed = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    config = tmp_path / "model" / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": listed}))
    assert load_tokenizer(tmp_path / "model").marks.templates == {"default": "d", "tool_use": "t"}
    extra = tmp_path / "model" / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("file")
    (tmp_path / "model" / "chat_template.jinja").write_text("main")
    templates = load_tokenizer(tmp_path / "model").marks.templates
    assert templates == {"default": "main", "tool_use": "file"}


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "video"])
def test_what_is_not_text_is_refused(kind: str) -> None:
    talk = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": "See?"}]}]
    with pytest.raises(
        RequestError,
        match=rf"^messages\.0\.content\.0\.type = '{kind}' is not valid; allowed: 'text'",
    ):
        require_text(talk)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            [{"type": "text", "text": "a"}, {"type": "file", "file": {}}],
            "messages.0.content.1.type",
        ),
        ([{}], "messages.0.content.0.type = None"),
        (
            [{"type": "text", "text": 5}],
            "messages.0.content.0.text = 5 is not valid; allowed: text",
        ),
        (["a"], "messages.0.content.0 = 'a' is not valid; allowed: an object with type and text"),
        (5, "messages.0.content = 5 is not valid; allowed: text, or parts"),
    ],
)
def test_a_part_is_text_or_refused_by_its_place(content: object, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        require_text([{"role": "user", "content": content}])
    assert words in str(refused.value) and str(refused.value).startswith(refused.value.path)


def test_parts_of_text_have_one_name_for_templates() -> None:
    takes = "{% for m in messages %}{% for p in m.content %}{{ p.type }}{% endfor %}{% endfor %}"
    talk = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
    require_text(talk)
    assert prepare_messages(talk, takes) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}]}
    ]


def test_arguments_and_parts_as_clients_send_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    talk = [{"role": "user", "content": parts}, {"role": "assistant", "tool_calls": [call]}]
    plain, calls = prepare_messages(talk, "{{ messages[0].content }}")
    assert plain["content"] == "one\ntwo"
    assert calls["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
    assert talk[0]["content"] is parts and call["function"]["arguments"] == '{"a": [1]}'
    takes = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert prepare_messages(talk[:1], takes)[0]["content"] == parts
    bad = {**call, "function": {"name": "f", "arguments": "not JSON"}}
    assert prepare_messages([{"role": "assistant", "tool_calls": [bad]}], "")[0]["tool_calls"] == [
        bad
    ]


def test_templates_see_plain_data_alone() -> None:
    class Word(str):
        def leak(self) -> str:
            return "leaked"

    talk = [{"role": "user", "content": Word("hi"), "image": object(), "many": (1, 2.5, True)}]
    assert render("{{ messages[0].content.leak is defined }}", talk, TOKENIZER) == "False"
    assert render("{{ messages[0].image }} {{ messages[0].many }}", talk, TOKENIZER) == (
        "<object> (1, 2.5, True)"
    )
