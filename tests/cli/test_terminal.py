"""What a person types at the prompt: pasted paragraphs, texts of several lines, and the commands of
a session; how answers are wrapped, and what happens when the context is full.
"""

import dataclasses
import json
import re
from inspect import signature
from pathlib import Path

import pytest

from flyweight import LLM, SamplingParams
from flyweight.cli.commands import HELP, OPTIONS
from flyweight.cli.conversation import Conversation, ConversationTurn
from flyweight.cli.run import run
from flyweight.errors import FlyweightError
from terminal import PROMPT, Terminal

GREEDY = ("--temperature", "0", "-n", "8")
PASTE = "\x1b[200~{}\x1b[201~"


@pytest.fixture(scope="module")
def shared(environment, speaking):
    """One session with a model that has a chat template."""
    one = Terminal(environment, speaking, *GREEDY, "--system", "Be brief.", "--ignore-eos")
    one.until(PROMPT)
    yield one
    one.close()


@pytest.fixture
def session(shared):
    """The shared session, without a conversation."""
    shared.say("/reset")
    shared.say("/system Be brief.")
    return shared


def saved(session: Terminal, file: Path) -> list[dict[str, str]]:
    """The session's messages, as `/save` writes them."""
    assert f"to {file}" in session.say(f"/save {file}")
    return json.loads(file.read_text(encoding="utf-8"))["messages"]


# --- what is typed ---


def test_a_pasted_paragraph_is_one_prompt(session, tmp_path) -> None:
    session.type(PASTE.format("First line,\rsecond line.\r\rThird.") + "\n")
    session.until("first token after")
    session.until(PROMPT)
    system, user, answer = saved(session, tmp_path / "a.json")
    assert system == {"role": "system", "content": "Be brief."}
    assert user == {"role": "user", "content": "First line,\nsecond line.\n\nThird."}
    assert answer["role"] == "assistant" and answer["content"]


def test_a_pasted_paragraph_that_begins_with_a_slash_is_no_command(session, tmp_path) -> None:
    session.say(PASTE.format("/help is\ra word"))
    assert saved(session, tmp_path / "a.json")[1]["content"] == "/help is\na word"


def test_quotes_begin_and_end_several_lines(session, tmp_path) -> None:
    session.type('"""one\n')
    session.until("... ")
    session.type("  two\n")
    session.until("... ")
    session.say('three"""')
    session.say('"""a single line"""')
    users = saved(session, tmp_path / "a.json")[1::2]
    assert [user["content"] for user in users] == ["one\n  two\nthree", "a single line"]


# --- commands ---


def test_help_lists_every_command(session) -> None:
    shown = session.say("/help")
    for word in ("/set", "/system", "/retry", "/save", "/load", "/reset", "/stats", "/bye"):
        assert f"\n{word} " in shown
    assert session.say("/?") == shown.replace("/help", "/?", 1)


def test_the_terminals_page_shows_the_commands() -> None:
    page = Path(__file__).parents[2] / "docs" / "terminal.md"
    assert HELP in page.read_text(encoding="utf-8")


def test_a_sampling_option_is_changed_and_takes_effect(session) -> None:
    assert session.say("/set max_tokens").startswith("/set max_tokens\nmax_tokens = 8\n")
    assert "temperature = 0.2\n" in session.say("/set temperature 0.2")
    assert "temperature = 0.0\n" in session.say("/set parameter temperature 0")
    assert "max_tokens = 3\n" in session.say("/set max-tokens 3")
    assert "max_tokens = 3\n" in session.say("/set --max-tokens 3")
    assert "\n3 tokens · " in session.say("hello")
    assert 'stop = ["x", "\\n"]\n' in session.say(r'/set stop ["x", "\n"]')
    assert "stop = []\n" in session.say("/set stop none")
    assert "seed = 7\n" in session.say("/set seed 7")
    assert "seed = none\n" in session.say("/set seed none")
    assert re.search(r"^temperature +0.0$", session.say("/set"), re.M)
    session.say("/set max_tokens 8")


def test_every_sampling_option_of_the_command_line_can_be_set() -> None:
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    assert signature(run).parameters.keys() & known == set(OPTIONS)


def test_a_wrong_option_changes_nothing(session) -> None:
    before = session.say("/set")
    assert "unknown option temprature (did you mean 'temperature'?)" in session.say(
        "/set temprature 1"
    )
    assert "error: temperature = -1.0 is out of range" in session.say("/set temperature -1")
    assert "error: top_k = 'few' is " in session.say("/set top_k few")
    assert session.say("/set") == before


def test_the_system_message(session, tmp_path) -> None:
    assert "\nBe brief.\n" in session.say("/system")
    assert "\nBe kind.\n" in session.say("/system Be kind.")
    session.say("hello")
    assert saved(session, tmp_path / "a.json")[0]["content"] == "Be kind."
    assert "\nno system message\n" in session.say('/system ""')
    assert saved(session, tmp_path / "a.json")[0]["role"] == "user"
    session.type('/system """Two\n')
    session.until("... ")
    assert "\nTwo\nlines\n" in session.say('lines"""')


def test_a_conversation_is_saved_and_loaded(session, tmp_path) -> None:
    first = session.say("tell me").splitlines()[1]
    file = tmp_path / "talk.json"
    assert len(saved(session, file)) == 3
    session.say("/reset")
    session.say('/system ""')
    assert f"loaded 1 turn from {file}" in session.say(f'/load "{file}"')
    after = session.say("and more").splitlines()[1]
    messages = saved(session, file)
    assert [m["content"] for m in messages[:4]] == ["Be brief.", "tell me", first, "and more"]
    assert messages[4]["content"].split() == after.split()


def test_only_saved_conversations_are_replaced_or_loaded(session, tmp_path) -> None:
    notes = tmp_path / "notes.json"
    notes.write_text('{"mine": 1}')
    session.say("hello")
    assert "holds no saved conversation; give another name" in session.say(f"/save {notes}")
    assert notes.read_text() == '{"mine": 1}'
    assert "messages = None; allowed: a list" in session.say(f"/load {notes}")
    assert "No such file" in session.say(f"/load {tmp_path / 'none.json'}")
    assert "/save needs the name of a file" in session.say("/save")
    assert "Conversation: 1 turn, " in session.say("/stats"), "what is refused changes nothing"


def test_retry_answers_the_last_prompt_again(session, tmp_path) -> None:
    assert "error: nothing to answer again" in session.say("/retry")
    session.say("/set temperature 5")
    session.say("/set seed 3")
    first = session.say("hello").splitlines()[1]
    again = session.say("/retry").splitlines()[1]
    assert again != first
    session.say("/reset")
    session.say("/set seed 4")
    assert session.say("hello").splitlines()[1] == again, "a retry adds one to the seed"
    session.say("/retry")
    assert len(saved(session, tmp_path / "a.json")) == 3, "it takes the place of the answer"
    session.say("/set seed none")
    session.say("/set temperature 0")


def test_stats_are_sentences(session) -> None:
    session.say("hello")
    shown = session.say("/stats")
    assert re.search(r"Last answer: 8 tokens · [\d.]+ tokens/s · .*\.\n", shown)
    taken = int(re.search(r"Conversation: 1 turn, (\d+) of 256 tokens of the context\.", shown)[1])
    assert taken > 8
    assert re.search(r"Engine: \d+ answers? finished.*; \d+ tokens computed, \d+ written, ", shown)


def test_unknown_commands_are_refused(session) -> None:
    assert "unknown command /sav (did you mean '/save'?); /help lists" in session.say("/sav")
    assert "error: /reset takes no value; allowed: /reset" in session.say("/reset now")


# --- the window ---


def test_answers_are_wrapped_between_words(environment, command) -> None:
    words = ("run", "stories", "Once upon a time", "--temperature", "0", "-n", "60")
    plain = command(*words).out
    narrow = Terminal(environment, *words[1:], columns=40)
    narrow.until("allowed (weights")
    narrow.until("\n")
    shown = narrow.until("60 tokens · ").rpartition("\n")[0]
    assert narrow.ended() == 0
    narrow.close()
    lines = shown.split("\n")
    assert len(lines) > 4 and max(map(len, lines)) <= 40
    assert shown.split() == ("Once upon a time" + plain).split(), "no word is cut or lost"


# --- a full context ---


def test_the_oldest_turns_are_dropped_and_a_line_says_so(environment, speaking, tmp_path) -> None:
    one = Terminal(environment, speaking, *GREEDY, "--max-model-len", "128", "--ignore-eos")
    one.until(PROMPT)
    said = [one.say(f"sentence number {i} about it") for i in range(8)]
    dropped = [re.search(r"context full: dropped the oldest (\d+) of (\d+) turns", s) for s in said]
    assert any(dropped) and "error" not in "".join(said)
    left = 8 - sum(int(found[1]) for found in dropped if found)
    users = [m["content"] for m in saved(one, tmp_path / "a.json") if m["role"] == "user"]
    assert users == [f"sentence number {i} about it" for i in range(8 - left, 8)]
    one.close()


@pytest.fixture(scope="module")
def models(folder, speaking):
    return [LLM(folder, max_model_len=128), LLM(speaking, max_model_len=128)]


def test_what_is_dropped_leaves_a_quarter_of_the_context_free(models) -> None:
    for llm in models:
        talk = Conversation(llm, "Be brief.")
        dropped = 0
        for at in range(30):
            line = "more about it " * (1 + at % 3)
            gone = talk.overflow(line, None)
            length = talk.length(talk.prompt(line, gone))
            assert length <= 128 - 128 // (4 if gone else 8)
            if gone:
                assert talk.length(talk.prompt(line, gone - 1)) > 128 - 128 // 4, (
                    "no more than that"
                )
            talk.turns = [*talk.turns[gone:], ConversationTurn(line, "an answer")]
            dropped += gone
        assert dropped > 5
        assert Conversation(llm, "Be brief.", shifts=False).overflow("x " * 500, None) == 0


def test_a_prompt_that_no_dropping_makes_room_for_is_refused(models) -> None:
    for llm in models:
        talk = Conversation(llm, "")
        talk.turns = [ConversationTurn("hello", "there")]
        assert talk.overflow("word " * 200, None) == 0
        with pytest.raises(FlyweightError, match="prompt has"):
            llm.generate(talk.prompt("word " * 200), SamplingParams(), use_tqdm=False)


def test_context_is_shift_or_full(command, folder) -> None:
    got = command("run", folder, "hi", "--context", "ful")
    assert got.code == 2
    assert "--context = 'ful' is not valid; allowed: shift, full (did you mean 'full'?)" in got.err
