"""`flyweight run` with a prompt: where prompts come from, what is printed where, and no network."""

import json
import re
from pathlib import Path

import pytest

from flyweight import LLM, SamplingParams

GREEDY = ("--temperature", "0", "-n", "12")
FIGURES = re.compile(
    r"^12 tokens · [\d.]+ tokens/s · first token after \d+ ms · stopped at max_tokens$", re.M
)


@pytest.fixture(scope="module")
def answers(folder):
    """What the API says to a prompt."""
    llm = LLM(folder)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return lambda prompt: llm.generate(prompt, params)[0].outputs[0].text


def test_an_answer_is_all_there_is_on_stdout(command, folder, answers) -> None:
    got = command("run", folder, "hello there", *GREEDY, "--ignore-eos")
    assert got.code == 0
    assert got.out == answers("hello there") + "\n"
    plan, figures = got.err.splitlines()
    assert plan.startswith("model: ") and " allowed (weights " in plan
    assert FIGURES.match(figures)


def test_the_prompt_from_a_pipe_or_a_file(command, folder, answers, tmp_path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("hello\nthere\n")
    wanted = answers("hello\nthere") + "\n"
    more = (*GREEDY, "--ignore-eos")
    assert command("run", folder, *more, stdin=b"hello\nthere\n").out == wanted
    assert command("run", folder, *more, "-f", file).out == wanted
    assert command("run", folder, *more, "-f", "-", stdin=b"hello\nthere").out == wanted
    joined = command("run", folder, "and more", *more, "-f", file)
    assert joined.out == answers("hello\nthere\nand more") + "\n"
    file.write_bytes(b"hello\nthere\r\n")
    assert command("run", folder, *more, "-f", file).out == wanted


def test_a_system_text(command, folder, speaking, answers) -> None:
    more = (*GREEDY, "--ignore-eos", "--system")
    preface = command("run", folder, "hello", *more, "Be brief.")
    assert preface.out == answers("Be brief. hello") + "\n"
    got = command("run", speaking, "hello", *more, "Be brief.", "--json")
    assert json.loads(got.out)["prompt"] == (
        "<|start|>system\nBe brief.<|end|>\n<|start|>user\nhello<|end|>\n<|start|>assistant\n"
    )


def test_json_is_the_whole_result(command, folder, answers) -> None:
    got = command("run", folder, "hello", *GREEDY, "--ignore-eos", "--json")
    result = json.loads(got.out)
    (choice,) = result["outputs"]
    assert choice["text"] == answers("hello") and len(choice["token_ids"]) == 12
    assert choice["finish_reason"] == "length" and result["finished"]
    assert result["metrics"]["ttft"] > 0 and result["num_cached_tokens"] == 0


def test_the_story_model_is_the_default(command) -> None:
    got = command("run", "Once upon a time", *GREEDY)
    assert got.code == 0 and len(got.out) > 12 and got.err.startswith("stories.gguf: ")
    assert command("run", "stories", "Once upon a time", *GREEDY).out == got.out


def test_seeds_and_sampling_options(command, folder) -> None:
    runs = [command("run", folder, "hello", "--seed", s, "-n", 20).out for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    more = ("--top-k", 1, "--top-p", 0.5, "--min-p", 0.1, "--repetition-penalty", 1.1)
    assert command("run", folder, "hello", "-n", 5, *more, "--stop", "x").code == 0


def test_options_of_the_engine(command, folder) -> None:
    more = ("--threads", 1, "--activations", "f32", "--kv_cache_dtype=f32", "--block-size", 16)
    got = command("run", folder, "hello", *GREEDY, *more, "--no-enable-prefix-caching", "-v")
    assert got.code == 0
    for words in ("Memory plan", "held already", "weights", "planned peak", "allowed"):
        assert words in got.err


@pytest.mark.parametrize("off", ["--no-kv-cache", "--scheduler=static"])
def test_what_is_switched_off_changes_no_answer(command, off: str) -> None:
    words = ("run", "Once upon a time", *GREEDY)
    assert command(*words, off).out == command(*words).out


def test_a_context_beyond_the_models_is_warned_of(command, folder) -> None:
    got = command("run", folder, "hello", *GREEDY, "--max-model-len", 300)
    assert got.code == 0 and "warning: max_model_len = 300 is above the 256 tokens" in got.err


@pytest.mark.parametrize("more", [(), ("--offline",)], ids=["plain", "offline"])
def test_no_network_call_is_made(process, folder, more) -> None:
    """With `--offline`, and without it while nothing downloads.  Every way out is barred: a socket
    made, a name looked up, an address called end the run.
    """
    barred = """
import sys
def bar(event, args):
    if event.startswith(("socket.", "urllib.", "http.", "ssl.")):
        sys.stderr.write(f"NETWORK {event} {args}\\n")
        raise RuntimeError(event)
sys.addaudithook(bar)
from flyweight.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    for model in ("stories", folder):
        got = process("run", model, "hello", *GREEDY, *more, code=barred)
        assert got.code == 0 and got.out and "NETWORK" not in got.err, got.err


def test_a_reader_may_leave_early(process, folder) -> None:
    code = """
import os, sys
from flyweight.cli.main import main
reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(writer)
os.close(reader)
sys.exit(main(sys.argv[1:]))
"""
    got = process("run", folder, "hello", "-n", 50, code=code)
    assert "Traceback" not in got.err and got.code in (0, 1)


def test_the_terminals_page_shows_the_help_there_is(command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # as tools/real_output.py has it
    page = Path(__file__).parents[2] / "docs" / "terminal.md"
    shown = "\n".join(line.rstrip() for line in command("run", "--help").out.splitlines())
    assert shown.strip("\n") in page.read_text(encoding="utf-8")


def test_help_and_version(command) -> None:
    assert "Answer PROMPT" in command("run", "--help").out
    for words in ((), ("--help",), ("-h",)):
        shown = command(*words)
        assert shown.code == 0 and "inspect" in shown.out
    assert re.fullmatch(r"flyweight \d+\.\d+\.\d+\n", command("--version").out)


def test_every_way_to_choose_tokens_has_its_option(command, folder) -> None:
    """The same options to the command and to the API, the same text; and each changes it."""
    llm = LLM(folder)
    bare = {"temperature": 1.3, "top_p": 0.95}
    usual = command("run", folder, "hello", "--seed", "5", "-n", "16", "--ignore-eos",
                    "--temperature", "1.3").out  # fmt: skip
    ways: list[dict[str, object]] = [
        {**bare, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {**bare, "dry_multiplier": 50.0, "dry_base": 3.0, "dry_allowed_length": 1,
         "dry_penalty_last_n": 9, "dry_sequence_breaker": ["e"]},
        {**bare, "repetition_penalty": 3.0, "repeat_last_n": 2},
        {**bare, "top_n_sigma": 0.3}, {**bare, "typical_p": 0.1}, {**bare, "min_p": 0.5},
        {**bare, "xtc_probability": 1.0, "xtc_threshold": 0.01},
        {**bare, "bad_words": [usual.strip()[:3]]},
        {"temperature": 1.3, "mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
        {"temperature": 1.3, "mirostat": 1, "mirostat_tau": 0.5},
    ]  # fmt: skip
    for way in ways:
        words = [w for name, value in way.items() for one in (value if isinstance(value, list)
                 else [value]) for w in (f"--{name.replace('_', '-')}", str(one))]  # fmt: skip
        got = command("run", folder, "hello", "--seed", "5", "-n", "16", "--ignore-eos", *words)
        if "dry_sequence_breaker" in way:
            way["dry_sequence_breakers"] = way.pop("dry_sequence_breaker")
        params = SamplingParams(**way, seed=5, max_tokens=16, ignore_eos=True)
        wanted = llm.generate("hello", params, use_tqdm=False)[0].outputs[0].text
        assert (got.code, got.out) == (0, wanted + "\n"), got.err
        assert got.out != usual or "dry_multiplier" in way, way


def test_mirostat_takes_the_place_of_the_usual_cuts(command, folder) -> None:
    refused = command("run", folder, "hello", "--mirostat", "2", "--top-k", "5")
    assert refused.code == 2
    assert "mirostat = 2 cannot be combined with top_k; leave one of them out" in refused.err
