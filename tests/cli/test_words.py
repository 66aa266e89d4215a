"""Words of users and of files come through as they are: none is read as markup, none is rewritten,
and none moves the cursor.
"""

import shutil
from types import SimpleNamespace

import pytest

from flyweight import LLM, SamplingParams, describe
from flyweight.cli.commands import obey
from flyweight.cli.main import main
from flyweight.cli.run import split_words
from flyweight.cli.session import ChatSession
from flyweight.cli.show import make_console
from flyweight.describe import ASSETS

GREEDY = ("--temperature", "0", "-n", "2")


@pytest.fixture
def said(monkeypatch):
    """`said(words)`: the prompt and the system text a command line hands on; nothing is loaded."""

    def call(*words: str) -> SimpleNamespace:
        found = SimpleNamespace(prompt=None, system=None, settings=None)

        def answer(prompt, settings, sampling, talk) -> None:
            found.prompt, found.system, found.settings = prompt, talk.system, settings

        monkeypatch.setattr("flyweight.cli.run.answer", answer)
        monkeypatch.setattr("sys.stdin", None)
        assert main(["run", "stories", *words]) == 0
        return found

    return call


@pytest.fixture(scope="module")
def bracketed(tmp_path_factory):
    """The story model under a name that reads as markup and as an emoji."""
    file = tmp_path_factory.mktemp("models") / "stories[q8]:dog:.gguf"
    shutil.copy(ASSETS / "stories.gguf", file)
    return file


# --- what the model gets ---


def test_values_and_prompts_are_not_rewritten(said) -> None:
    assert said("--", "--my_snake_case is").prompt == "--my_snake_case is"
    assert said("--", "--max_tokens").prompt == "--max_tokens"
    assert said("hi", "--system", "--be_brief").system == "--be_brief"
    assert said("hi", "--system", "--max_tokens").system == "--max_tokens"
    assert said("hi", "--system=--be_brief").system == "--be_brief"
    assert said("hi", "-vf", "/dev/null", "--system", "a_b").system == "a_b"
    assert said("-vn", "5", "a_b=c_d").prompt == "a_b=c_d"


def test_options_are_taken_in_both_spellings(said) -> None:
    got = said("hi", "--max_model_len=5", "-n5", "--block_size", "8", "--no_enable_prefix_caching")
    assert got.prompt == "hi" and got.settings["max_model_len"] == 5
    assert got.settings["block_size"] == 8 and not got.settings["enable_prefix_caching"]


# --- what a person sees ---


def test_a_file_name_is_no_markup(command, bracketed) -> None:
    assert command("run", bracketed, "hi", *GREEDY).err.startswith(f"{bracketed.name}: ")
    assert bracketed.name in command("inspect", bracketed).out


def test_a_folder_that_is_here_has_a_name(command, folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    assert command("run", ".", "hi", *GREEDY).err.startswith("model: ")


def test_a_word_that_names_a_model_inside_is_a_model(monkeypatch) -> None:
    """The names are those of the package, wherever they are listed."""
    monkeypatch.setattr(describe, "INSIDE", (*describe.INSIDE, "tales"))
    for name in describe.INSIDE:
        assert split_words([name]) == (name, None)
    assert split_words(["fables"]) == (None, "fables")


def test_a_warning_is_no_markup(capsys) -> None:
    from flyweight.cli.show import LoadingDisplay

    LoadingDisplay(make_console(stderr=True), verbose=False).warn("a[/b] \x1b]0;title\x07")
    assert capsys.readouterr().err == "warning: a[/b] \\x1b]0;title\\x07\n"


@pytest.mark.parametrize("piece", ["[/x/]", "\x1b[2J\n"])
def test_a_stop_token_is_no_markup(command, folder, monkeypatch, piece) -> None:
    monkeypatch.setattr("flyweight.text.tokenizer.Tokenizer.piece", lambda self, token: piece)
    got = command("inspect", folder)
    assert got.code == 0 and repr(piece)[1:-1] in got.out


@pytest.fixture
def session(folder, capsys, monkeypatch):
    """`session(lines, ...)`: what a session in this process shows on stderr; a line may be an
    exception.
    """

    def call(*lines: object, settle=lambda session: None) -> str:
        waiting = iter([*lines, "/bye"])

        def typed(_) -> str:
            line = next(waiting)
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr("builtins.input", typed)
        monkeypatch.setattr("flyweight.cli.lines.edit_lines", lambda: None)
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        console = make_console(stderr=True)
        talk = ChatSession(LLM(folder, max_model_len=32), params, "", console, obey, context="full")
        settle(talk)
        talk.run()
        return capsys.readouterr().err

    return call


def test_a_command_is_no_markup(session) -> None:
    shown = session("/foo[/b]", "/foo[b] x")
    assert "unknown command /foo[/b];" in shown and "unknown command /foo[b];" in shown


def test_errors_are_one_printable_line(command, tmp_path) -> None:
    got = command("inspect", tmp_path / "a\x1b[2J\x07\u202e.gguf")
    assert got.code == 2 and "a\\x1b[2J\\x07\\u202e.gguf" in got.err
    assert got.err.count("\n") == 1 and got.err[:-1].isprintable()


def test_a_word_in_quotes_is_shown_whole(command) -> None:
    got = command("Don't go")
    assert got.err.startswith('error: unknown command "Don\'t go" (nearest: ')


def test_what_looks_like_a_path_may_be_a_prompt(command) -> None:
    for stdin in (None, b"", b"text"):
        got = command("run", "and/or", stdin=stdin)
        assert got.code == 2 and "as a prompt: flyweight run stories and/or" in got.err


# --- Ctrl-C, and conversations that grow too long ---


def test_ctrl_c_twice_ends_an_answer_only(session) -> None:
    def settle(talk: ChatSession) -> None:
        def stream(prompt, params, **more):
            try:
                yield from ()
                raise KeyboardInterrupt
            finally:
                raise KeyboardInterrupt  # while the request is given up

        talk.llm.stream = stream

    shown = session("hello", KeyboardInterrupt(), "/nothing", settle=settle)
    assert "unknown command /nothing" in shown


def test_ctrl_c_falls_on_the_figures(session) -> None:
    def settle(talk: ChatSession) -> None:
        calm = talk._figures
        pressed = iter([True])

        def figures(out) -> str:
            if next(pressed, False):
                raise KeyboardInterrupt
            return calm(out)

        talk._figures = figures

    shown = session("hello", "more", settle=settle)
    assert shown.count("first token after") == 1


def test_what_cut_an_answer_short_is_said(session) -> None:
    def endless(talk: ChatSession) -> None:
        talk.params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)

    assert session("hello").endswith(" ms · stopped at max_tokens\n")
    _, figures, error = session("hello", "more", settle=endless).splitlines()
    assert figures.endswith(" · context full")
    assert error.startswith("error: prompt has ")
    assert error.endswith(
        "; /reset forgets the conversation, --context shift drops its oldest turns"
    )


def test_a_first_line_that_is_too_long_has_nothing_to_forget(session) -> None:
    assert "forgets" not in session("word " * 40)
