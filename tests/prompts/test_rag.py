"""The RAG template: what is in a prompt, what was left out, and which answers are allowed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight import LLM, SamplingParams
from flyweight.errors import ConfigError
from flyweight.prompts import RagTemplate
from flyweight.prompts.passages import read_passages, split_passages

PASSAGES = [
    "The owl lives at the lake. It sleeps all day.",
    "The fox found a red boat. She gave it to the bear, who went to the lake with her friends.",
    "Bees make honey.",
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(memory_limit="8GiB") as found:
        yield found


def count(llm: LLM, text: str) -> int:
    return len(llm.tokenizer.encode(text, add_special=False))


def test_sections_in_the_order_of_the_seed(llm: LLM) -> None:
    template = RagTemplate('Say "{not_found}" if unsure.', "unknown")
    made = template.make(llm.tokenizer, " Where is the owl? ", PASSAGES[:1])
    assert made.text == (
        "[CONTEXT]\nThe owl lives at the lake. It sleeps all day.\n\n"
        "[QUESTION]\nWhere is the owl?\n\n"
        '[INSTRUCTION]\nSay "unknown" if unsure.\n\n[ANSWER]\n'
    )
    assert made.describe() == f"1 of 1 passages, 0 left out, {made.context_tokens} tokens"


def test_the_instruction_may_be_first(llm: LLM) -> None:
    made = RagTemplate(instruction_first=True).make(llm.tokenizer, "Why?", PASSAGES)
    places = [made.text.index(f"[{name}]") for name in ("INSTRUCTION", "CONTEXT", "QUESTION")]
    assert places == sorted(places) and made.text.endswith("[ANSWER]\n")
    assert [one["role"] for one in made.messages] == ["system", "user"]


def test_what_does_not_fit_is_left_out_and_counted(llm: LLM) -> None:
    """A budget for the first and the last passage and the line that counts: the second is too long,
    the third still fits.
    """
    context = f"{PASSAGES[0]}\n\n{PASSAGES[2]}\n\n(1 of 3 passages left out)"
    budget = count(llm, context)
    made = RagTemplate().make(llm.tokenizer, "Why?", PASSAGES, budget)
    assert made.used == (0, 2) and made.left_out == (1,)
    assert context in made.text and PASSAGES[1] not in made.text
    assert made.context_tokens == budget
    assert made.describe() == f"2 of 3 passages, 1 left out, {budget} of {budget} tokens"
    less = RagTemplate().make(llm.tokenizer, "Why?", PASSAGES, budget - 1)
    assert less.used == (0,) and "(2 of 3 passages left out)" in less.text


def test_every_budget_is_kept(llm: LLM) -> None:
    whole = count(llm, "\n\n".join(PASSAGES))
    for budget in range(24, whole + 40):
        try:
            made = RagTemplate().make(llm.tokenizer, "Why?", PASSAGES, budget)
        except ConfigError:
            continue
        assert made.context_tokens <= budget
        assert len(made.used) + len(made.left_out) == 3
    assert made.used == (0, 1, 2) and made.context_tokens == whole
    exact = RagTemplate().make(llm.tokenizer, "Why?", PASSAGES, whole)
    assert exact.used == (0, 1, 2)


@pytest.mark.parametrize(
    ("question", "passages", "budget", "said"),
    [
        (" ", PASSAGES, None, "question is empty"),
        ("Why?", [*PASSAGES, " "], None, "passages.3 is empty"),
        ("Why?", "text", None, "passages is one text"),
        ("Why?", PASSAGES, 0, "budget = 0 is not valid; allowed: 1 or more"),
        ("Why?", PASSAGES, 2, "budget = 2 holds none of the passages; allowed: "),
    ],
)
def test_refusals(
    llm: LLM, question: str, passages: list[str], budget: int | None, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        RagTemplate().make(llm.tokenizer, question, passages, budget)
    assert str(caught.value).startswith(said)


def test_the_least_budget_is_in_the_refusal(llm: LLM) -> None:
    with pytest.raises(ConfigError) as caught:
        RagTemplate().make(llm.tokenizer, "Why?", PASSAGES, 2)
    least = int(caught.value.allowed.split()[0])
    assert RagTemplate().make(llm.tokenizer, "Why?", PASSAGES, least).used == (2,)
    with pytest.raises(ConfigError):
        RagTemplate().make(llm.tokenizer, "Why?", PASSAGES, least - 1)


@pytest.mark.parametrize("given", [{"instruction": " "}, {"not_found": ""}])
def test_empty_templates_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        RagTemplate(**given)


def test_answers_are_sentences_of_the_context_or_not_found(llm: LLM) -> None:
    made = RagTemplate().make(llm.tokenizer, "Where is the owl?", PASSAGES[:1])
    sentences = ["The owl lives at the lake.", "It sleeps all day."]
    assert made.list_sentences() == sentences
    one = made.make_choice()
    assert one.choice == (*sentences, "not found")
    assert made.make_choice(["yes", "no"]).choice == ("yes", "no", "not found")
    pairs = {f"{a} {b}" for a in sentences for b in sentences}
    for form, allowed in ((one, set(one.choice)), (made.make_grammar(), pairs | set(one.choice))):
        for seed in range(4):
            params = SamplingParams(
                temperature=2, max_tokens=60, seed=seed, structured_outputs=form
            )
            (output,) = llm.generate(made.text, params, use_tqdm=False)
            assert output.outputs[0].text in allowed


def test_quotes_and_line_ends_in_a_grammar(llm: LLM) -> None:
    passage = 'He said "a\\b".\nThen\tleft'
    made = RagTemplate().make(llm.tokenizer, "Why?", [passage])
    assert made.list_sentences() == ['He said "a\\b".', "Then left"]
    params = SamplingParams(temperature=1, max_tokens=60, structured_outputs=made.make_grammar())
    (output,) = llm.generate(made.text, params, use_tqdm=False)
    assert output.outputs[0].text.split(".")[0] in ('He said "a\\b"', "Then left", "not found") or (
        output.outputs[0].text.startswith("Then left ")
    )


def test_without_passages_only_not_found_is_allowed(llm: LLM) -> None:
    made = RagTemplate().make(llm.tokenizer, "Why?", [])
    assert made.make_choice().choice == ("not found",)
    assert made.make_grammar().grammar == 'root ::= "not found"\n'


def test_files_of_passages(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\nMore.\n\n \nTwo.\n")
    (tmp_path / "b.jsonl").write_text('"Three."\n\n{"text": "Four.", "score": 0.5}\n')
    (tmp_path / "c.json").write_text(json.dumps(["Five.", {"text": "Six."}]))
    names = [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "c.json")]
    assert read_passages(names) == ["One.\nMore.", "Two.", "Three.", "Four.", "Five.", "Six."]
    assert split_passages("\n \n") == []


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("a.txt", b"\n", "there is no passage"),
        ("a.txt", b"\xff", "is not UTF-8 at byte 0"),
        ("a.json", b"{}", "is no list of passages"),
        ("a.json", b"[", "is not JSON"),
        ("a.jsonl", b'{"title": "a"}', "a.jsonl:1: has no text"),
        ("a.json", b'["a", " "]', "a.json: 1: has no text"),
    ],
)
def test_files_that_hold_no_passages(tmp_path: Path, file: str, content: bytes, said: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_passages([str(tmp_path / file)])
    assert said in str(caught.value)
