"""`flyweight eval tasks`: what reaches lm-eval, what is shown of it, and refusals in one line."""

import json
import sys
from collections.abc import Iterator

import fake_lm_eval
import pytest

from flyweight import LLM, SamplingParams


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fake_lm_eval.install(monkeypatch)
    yield
    sys.modules.pop("flyweight.eval.harness", None)  # it has the fake one's classes


def test_figures_of_tasks(harness, command, folder, tmp_path) -> None:
    file = tmp_path / "figures.json"
    words = ("eval", "tasks", folder, "--tasks", "choices, answers", "--limit", 2)
    shown = command(*words, "--num-fewshot", 0, "--include-path", tmp_path, "--output", file)
    assert shown.code == 0, shown.err
    assert fake_lm_eval.asked == [
        {"tasks": ["choices", "answers"], "folder": str(tmp_path), "num_fewshot": 0, "limit": 2,
         "apply_chat_template": False, "log_samples": False},
    ]  # fmt: skip
    found = json.loads(file.read_text())
    share = found["results"]["choices"]["acc,none"]
    assert shown.out.splitlines()[:4] == [
        "choices  2 documents, 0-shot", f"         acc: {share:.4f} ± 0.2500", "all      group",
        f"         acc: {share:.4f}",
    ]  # fmt: skip
    assert "         length (first): " in shown.out
    got = command(*words, "--json")
    assert json.loads(got.out)["results"] == found["results"]
    assert found["model"] == str(folder) and found["activations"] == "int8"
    assert "samples" not in found


def test_likelihoods_are_the_engines(harness, command, folder) -> None:
    """The rolling one of two texts, against `generate` with log-probabilities of the prompt."""
    got = command("eval", "tasks", folder, "--tasks", "answers", "--json")
    found = json.loads(got.out)["results"]["answers"]["nll,none"]
    nll = 0.0
    with LLM(str(folder)) as llm:
        for text, *_ in fake_lm_eval.DOCUMENTS:
            ids = llm.tokenizer.encode(text)
            ids = [llm.tokenizer.bos_id or 0, *ids]
            params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
            (out,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
            rows = (out.prompt_logprobs or ())[1:]
            nll -= sum(row[one].logprob for row, one in zip(rows, ids[1:], strict=True) if row)
    assert found == pytest.approx(nll, abs=1e-4)


def test_prompts_through_the_template(harness, command, speaking) -> None:
    words = ("eval", "tasks", speaking, "--tasks", "answers", "--json")
    plain = json.loads(command(*words).out)
    chat = json.loads(command(*words, "--apply-chat-template").out)
    assert fake_lm_eval.asked[1]["apply_chat_template"] is True
    nll = [one["results"]["answers"]["nll,none"] for one in (plain, chat)]
    assert nll[1] > nll[0]  # there is more text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--tasks", "choice"), "tasks = 'choice' is no task of lm-eval (did you mean 'choices'?)"),
        (("--tasks", "none.yaml"), "tasks = 'none.yaml' is no file"),
        (("--tasks", ","), "tasks = ',' names no task"),
        (("--tasks", "lost"), "tasks cannot be loaded: ConnectionError: Couldn't reach 'lost'"),
        (("--tasks", "choices", "--limit", "0"), "--limit = '0'"),
        (("--tasks", "choices", "--include-path", "nowhere"), "include_path = 'nowhere'"),
        (("--tasks", "choices", "--output", "nowhere/x.json"), "output = 'nowhere/x.json' has no"),
    ],
)
def test_refusals(harness, command, folder, more, words) -> None:
    shown = command("eval", "tasks", folder, *more)
    assert shown.code == 2 and shown.out == "", shown.out
    *_, last = shown.err.splitlines()
    assert last.startswith("error: ") and words in last, shown.err


def test_lm_eval_is_not_installed(command, folder, monkeypatch) -> None:
    monkeypatch.setattr("flyweight.cli.eval_tasks.find_spec", lambda name: None)
    shown = command("eval", "tasks", folder, "--tasks", "choices")
    assert shown.code == 2
    assert shown.err == "error: eval tasks needs lm-eval; pip install 'flyweight[eval]'\n"
