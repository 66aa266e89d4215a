"""`LLM.chat` and `LLM.conversation`: tools, templates, switches, the last message continued."""

from pathlib import Path
from typing import Any

import pytest

from flyweight import LLM, SamplingParams
from flyweight.errors import RequestError
from tiny_model import tiny_folder

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.arguments.city }}>{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | map(attribute='function.name') | join(',') }}{% endif %}"
    "{% if documents %}{{ documents | length }}{% endif %}{{ mood or '' }}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TALK = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]
FEW = SamplingParams(temperature=0, max_tokens=2)


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(tiny_folder(tmp_path_factory.mktemp("speaking") / "m", chat_template=TEMPLATE))


def said(llm: LLM, messages: Any = TALK, **options: Any) -> str:
    """The prompt, as `chat` reports it."""
    (out,) = llm.chat(messages, FEW, use_tqdm=False, **options)
    assert out.outputs[0].token_ids and out.prompt is not None
    return out.prompt.removeprefix("<|start|>")


def test_tools_documents_and_switches(speaking: LLM) -> None:
    assert said(speaking) == "[user]hi[assistant]"
    assert said(speaking, tools=TOOLS) == "[user]hiclock[assistant]"
    assert said(speaking, documents=[{"title": "T", "text": "x"}]) == "[user]hi1[assistant]"
    assert said(speaking, chat_template_kwargs={"mood": "glad"}) == "[user]higlad[assistant]"
    assert said(speaking, add_generation_prompt=False) == "[user]hi"
    assert speaking.chat(TALK, FEW, False)[0].prompt  # vLLM takes use_tqdm by position here
    with pytest.raises(RequestError, match="chat_template_kwargs = 'mood' is not valid; allowed"):
        speaking.chat(TALK, chat_template_kwargs="mood")  # type: ignore[arg-type]


def test_a_template_of_the_callers_own(speaking: LLM) -> None:
    assert said(speaking, chat_template="{{ messages[0].content }}!") == "hi!"
    assert said(speaking, chat_template="default") == "[user]hi[assistant]"
    with pytest.raises(RequestError, match="chat_template = 'rag' is not valid; allowed"):
        speaking.chat(TALK, chat_template="rag")


def test_the_last_message_is_continued(speaking: LLM) -> None:
    talk = [*TALK, {"role": "assistant", "content": "The answer is "}]
    prompt = said(speaking, talk, continue_final_message=True)
    assert prompt == "[user]hi[assistant]The answer is "
    with pytest.raises(RequestError, match="exclude each other"):
        speaking.chat(talk, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(RequestError, match="no text in 'content'"):
        speaking.chat([{"role": "user"}], continue_final_message=True)
    with pytest.raises(RequestError, match="leaves out the last message"):
        speaking.chat(TALK, continue_final_message=True, chat_template="{{ 'x' }}")


def test_clients_forms_are_taken(speaking: LLM) -> None:
    function = {"name": "w", "arguments": '{"city": "Bern"}'}
    calls = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    assert said(speaking, [parts, calls]) == "[user]a[assistant]<Bern>[assistant]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [len]}, r"tools\.0 = .*allowed: a list of mappings, each a function's"),
        ({"tools": {"type": "function"}}, "a list of mappings"),
        ({"documents": ["text"]}, r"documents\.0 = 'text' is not valid; allowed"),
        ({"add_generation_promt": True}, "did you mean 'add_generation_prompt'.*chat_template_kwa"),
        ({"enable_thinking": False}, "not an option of chat.*chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "'messages' is not a switch"),
    ],
)
def test_wrong_options_are_refused(speaking: LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        speaking.chat(TALK, **options)


def test_a_conversation_can_be_streamed(speaking: LLM) -> None:
    prompt = speaking.conversation(TALK, tools=TOOLS)
    *_, last = speaking.stream(prompt, FEW)
    (whole,) = speaking.chat(TALK, FEW, tools=TOOLS, use_tqdm=False)
    assert last.outputs[0].token_ids == whole.outputs[0].token_ids
    assert last.prompt == whole.prompt


@pytest.mark.parametrize("talk", [TALK, [*TALK, {"role": "assistant", "content": "ho"}]])
def test_without_a_template_messages_are_text(tmp_path: Path, talk: list[dict[str, Any]]) -> None:
    """As `flyweight run` and the server do: line by line, with what begins a text before it."""
    silent = LLM(tiny_folder(tmp_path / "m"))
    (out,) = silent.chat(talk, FEW, use_tqdm=False)
    text = "\n".join(message["content"] for message in talk)
    assert out.prompt == text
    assert out.prompt_token_ids == silent.generate(text, FEW, use_tqdm=False)[0].prompt_token_ids
    for option in ({"tools": TOOLS}, {"documents": []}, {"chat_template_kwargs": {"a": 1}}):
        with pytest.raises(RequestError, match="has no effect: this model has no chat template"):
            silent.chat(talk, FEW, **option)


def test_switches_reach_a_conversation(speaking: LLM) -> None:
    shown = "{{ tone }} {{ messages[0].content }}"
    for given, text in (({"tone": "dry"}, "dry hi"), ({}, " hi"), (None, " hi")):
        prompt = speaking.conversation(TALK, chat_template=shown, chat_template_kwargs=given)
        assert prompt["prompt"] == text
    with pytest.raises(RequestError, match=r"not an option of chat.*chat_template_kwargs"):
        speaking.conversation(TALK, tone="dry")
    with pytest.raises(RequestError, match="'messages' is not a switch"):
        speaking.conversation(TALK, chat_template_kwargs={"messages": []})


def test_no_template_but_the_callers(tmp_path: Path) -> None:
    silent = LLM(tiny_folder(tmp_path / "m"))
    assert said(silent, chat_template="{{ messages[0].content }}") == "hi"


def test_an_image_is_refused_and_not_a_mark_in_the_prompt(tmp_path: Path) -> None:
    llm = LLM(tiny_folder(tmp_path / "m", chat_template="{{ messages[0].content[0].type }}"))
    talk = [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]
    with pytest.raises(RequestError, match=r"content\.0\.type = 'image' is not valid; .*only text"):
        llm.chat(talk)
