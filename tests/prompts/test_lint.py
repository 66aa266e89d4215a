"""Sections, template drift, and the files that requests are read from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import find, open_tokenizer
from flyweight.errors import ConfigError, FlyweightError
from flyweight.prompts.drift import find_drift
from flyweight.prompts.lint import PromptLinter
from flyweight.prompts.rendering import PromptRenderer
from flyweight.prompts.requests import SampleRequest, read_requests
from flyweight.prompts.sections import count_sections, split_sections
from flyweight.text.tokenizer import Tokenizer

CLEAN = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "Good day."},
    {"role": "user", "content": "How are you?"},
]


def with_template(template: str) -> Tokenizer:
    own = open_tokenizer(find(Settings.of()))
    return replace(own, marks=replace(own.marks, templates={"default": template}))


def drifts(template: str, messages: list[dict[str, str]]) -> list[tuple[int, str, str]]:
    request = SampleRequest.of_messages("a", messages)
    found = find_drift(PromptRenderer(with_template(template)), request)
    return [(one.turn, one.expected, one.got) for one in found]


def test_a_template_that_only_appends_does_not_drift() -> None:
    assert drifts(CLEAN, TALK) == []


def test_a_generation_prompt_that_history_lacks() -> None:
    """The first token that differs is the one after the marks of the assistant."""
    template = CLEAN.replace("<assistant>", "<assistant> (calm)")
    tokenizer = with_template(template)
    request = SampleRequest.of_messages("a", TALK)
    first, second = find_drift(PromptRenderer(tokenizer), request)
    known = tokenizer.encode("<user> Hello there\n<assistant> (calm)Good day.", add_special=False)
    later = tokenizer.encode("<user> Hello there\n<assistant> Good day.\n", add_special=False)
    same = next(i for i, (a, b) in enumerate(zip(known, later, strict=False)) if a != b)
    assert (first.turn, first.token, first.lost) == (1, same, len(known) - same)
    assert "(c" in first.expected and "Go" in first.got
    assert second.turn == 3  # of the answer that is made up


def test_a_template_that_strips_reasoning() -> None:
    template = CLEAN.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    messages = [TALK[0], {"role": "assistant", "content": "<think>x</think>Good day."}, TALK[2]]
    ((turn, expected, got),) = drifts(template, messages)
    assert turn == 1 and "th" in expected and "Good" in got


def test_reasoning_in_a_field_of_its_own() -> None:
    """Left out of later turns it is a drift; shown in them, with marks around it, it is none."""
    messages = [TALK[0], {**TALK[1], "reasoning_content": "They greet me."}, TALK[2]]
    ((turn, expected, got),) = drifts(CLEAN, messages)
    assert turn == 1 and "They greet me." in expected and "Good day." in got
    shown = "{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}"
    assert drifts(CLEAN.replace("{{ m.content }}", shown), messages) == []


def test_a_template_that_counts_messages() -> None:
    assert [turn for turn, *_ in drifts("{{ messages|length }}" + CLEAN, TALK)] == [1, 3]


def test_a_template_that_writes_the_time() -> None:
    tokenizer = with_template("{{ strftime_now('%Y') }}" + CLEAN)
    lint = PromptLinter(tokenizer, 32).lint([SampleRequest.of_messages("a", TALK)])
    assert [one.rule for one in lint.findings] == ["clock"]


def test_a_message_that_the_template_leaves_out() -> None:
    tokenizer = with_template("{{ messages[0].content }}{{ messages[-1].content }}")
    lint = PromptLinter(tokenizer, 32).lint([SampleRequest.of_messages("a", TALK)])
    hidden = [one.section for one in lint.findings if one.rule == "hidden"]
    assert hidden == ["messages.1 assistant"]


def test_sections_of_a_text() -> None:
    text = "Hi.\n[CONTEXT]\na\n```\n# no heading\n```\n## Rules ##\nb\n[QUESTION] Why?\n[lower]\n"
    assert [(one.name, text[one.start : one.stop].count("\n")) for one in split_sections(text)] == [
        ("(beginning)", 1), ("[CONTEXT]", 5), ("## Rules ##", 2), ("[QUESTION]", 2),
    ]  # fmt: skip
    assert [one.name for one in split_sections("\n# A\nb")] == ["# A"]
    assert [one.name for one in split_sections("")] == ["(beginning)"]


@pytest.mark.parametrize("text", ["One.\n[CONTEXT]\nThe owl.\n[ANSWER]\n", "Only text"])
def test_tokens_of_sections_add_up(text: str) -> None:
    tokenizer = with_template(CLEAN)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Why?"}]
    requests = [SampleRequest("a", (text,)), SampleRequest.of_messages("b", messages)]
    for request in requests:
        prompt = PromptRenderer(tokenizer).render(request)
        counts = count_sections([request], [prompt])
        assert sum(one.tokens for one in counts) == len(prompt.ids)
        assert all(one.tokens > 0 for one in counts)


def test_volatile_text_at_the_end_is_no_finding() -> None:
    text = "The owl and the fox went to the lake to find a red boat.\n" * 8
    linter = PromptLinter(with_template(CLEAN), 32)
    late = linter.lint([SampleRequest("a", (text + "It is 12:30.",))])
    assert late.findings == () and late.now == late.moved
    early = linter.lint([SampleRequest("a", ("It is 12:30.\n" + text,))])
    (finding,) = early.findings
    assert (finding.rule, finding.section) == ("volatile", "(beginning)")
    assert finding.lost == early.moved.found - early.now.found > 0


def test_requests_of_every_form(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(TALK))
    lines = [
        {"prompt": "Once"},
        {"messages": TALK[:1], "temperature": 0.5},
        {"custom_id": "1", "body": {"messages": TALK}},
        TALK[:2],
        "Plain",
    ]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (tmp_path / "c.md").write_text("# A\n[1, 2]")
    names = [str(tmp_path / name) for name in ("a.json", "b.jsonl", "c.md")]
    found = read_requests(names)
    assert [len(one.messages) for one in found] == [3, 0, 1, 3, 2, 0, 0]
    assert found[1].where.endswith("b.jsonl:1") and found[6].texts == ("# A\n[1, 2]",)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("a.json", b"[1", "a.json: is not JSON"),
        ("a.json", b"{}", "a.json: has no prompt; allowed: a list of chat messages"),
        ("a.json", b"[]", "has no prompt"),
        ("a.json", b'[{"role": 1}]', "messages.0"),
        ("a.json", b'{"messages": [{"role": "user"}], "tools": 5}', "tools = 5"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": 5}', "a.jsonl:2: has no prompt"),
        ("a.jsonl", b"\n", "there is no request"),
        ("a.txt", b" \n", "the prompt is empty"),
        ("a.txt", b"\xff", "is not UTF-8 at byte 0"),
    ],
)
def test_files_that_hold_no_request(tmp_path: Path, file: str, content: bytes, said: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(FlyweightError) as caught:
        read_requests([str(tmp_path / file)])
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises((ConfigError, FlyweightError), match=r"no\.txt"):
        read_requests(["no.txt"])


def test_a_system_message_that_the_template_moves_is_not_hidden() -> None:
    """As Mistral's templates do, which put it into the last turn of the user."""
    moved = (
        "{% for m in messages[1:] %}<{{ m.role }}>"
        "{% if loop.last %}{{ messages[0].content }} {% endif %}{{ m.content }}\n{% endfor %}"
    )
    messages = [{"role": "system", "content": "Be brief."}, *TALK]
    request = SampleRequest.of_messages("a", messages)
    tokenizer = with_template(moved)
    lint = PromptLinter(tokenizer, 32).lint([request])
    assert [one.rule for one in lint.findings if one.rule == "hidden"] == []
    assert sum(one.tokens for one in lint.sections) == lint.tokens
    assert {one.name for one in lint.sections} >= {"messages.0 system", "messages.3 user"}


@pytest.mark.parametrize("template", [CLEAN, CLEAN.replace("m.content", "m.content|length")])
def test_changed_texts_are_encoded_as_if_rendered(template: str) -> None:
    """By putting them into the prompt where the template copies texts, else by rendering."""
    tokenizer = with_template(template)
    request = SampleRequest.of_messages("a", TALK)
    other = request.with_texts(["Hello my friend", "Good day.", "How are you now?"])
    renderer = PromptRenderer(tokenizer)
    for _ in range(2):
        found = renderer.encode_changed(request, other)
        assert found == PromptRenderer(tokenizer).render(other).ids
    assert renderer.encode_changed(request, request) == renderer.render(request).ids


def test_tokens_up_to_a_place_are_those_that_begin_before_it() -> None:
    """Counted from pieces, and equal at line ends to a tokenizer's own count of the text before."""
    tokenizer = with_template(CLEAN)
    text = "The owl é lives.\nIt sleeps 数 all day.\nThe fox."
    prompt = PromptRenderer(tokenizer).render(SampleRequest("a", (text,)))
    assert prompt.starts is not None and len(prompt.starts) == len(prompt.ids)
    for place in (i + 1 for i, letter in enumerate(text) if letter == "\n"):
        assert prompt.count(place) == len(tokenizer.encode(text[:place]))
    assert prompt.count(0) == 0 and prompt.count(len(text)) == len(prompt.ids)
