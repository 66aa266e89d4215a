"""Rows answered in one process: the texts of `LLM`, errors in the output, jobs that are killed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_texts import write_rows
from flyweight import LLM, SamplingParams
from flyweight.batch.answering import RowAnswerer
from flyweight.batch.job import BatchSummary, run_batch
from flyweight.batch.local import LocalRunner
from flyweight.batch.rows import Row
from flyweight.cli.batch import BatchProgress
from flyweight.cli.main import main
from flyweight.server.settings import ServerSettings

PROMPTS = ["Once upon a time", "The cat", "Lily and Tom", "One day"]
SETTINGS: dict[str, Any] = {"model": "stories", "threads": 1}


def read_lines(file: Path) -> dict[str, Any]:
    """The lines of an output by their custom_id."""
    return {line["custom_id"]: line for line in map(json.loads, file.read_text().splitlines())}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(**SETTINGS) as found:
        yield found


def answer(llm: LLM, rows: list[Any], **server: Any) -> dict[int, Any]:
    """The lines of rows, by their numbers."""
    answerer = RowAnswerer(llm, ServerSettings(**server))
    given = [Row(i, 0, json.dumps(row).encode()) for i, row in enumerate(rows, 1)]
    found = {one.number: json.loads(one.line) for one in answerer.answer(iter(given))}
    answerer.close()
    return found


def test_texts_are_those_of_generate_and_of_chat(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=12)
    options = {"temperature": 0.8, "seed": 7, "max_tokens": 12}
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    lines = [
        {"custom_id": prompt, "method": "POST", "url": "/v1/completions",
         "body": {"model": "stories", "prompt": prompt, **options}}
        for prompt in PROMPTS
    ]  # fmt: skip
    plain: list[Any] = [{"prompt": prompt, **options} for prompt in PROMPTS]
    talk = [{"messages": messages, **options} for messages in chats]
    found = answer(llm, [*lines, *plain, *talk])
    bodies = [found[i + 1]["response"]["body"] for i in range(12)]
    texts = [out.outputs[0].text for out in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert [body["choices"][0]["text"] for body in bodies[:8]] == texts * 2
    replies = [out.outputs[0].text for out in llm.chat(chats, params, use_tqdm=False)]
    assert [body["choices"][0]["message"]["content"] for body in bodies[8:]] == replies
    assert found[1]["custom_id"] == PROMPTS[0] and found[1]["error"] is None
    assert bodies[0]["usage"]["completion_tokens"] == 12


def test_several_prompts_choices_and_vectors(llm: LLM) -> None:
    many = {"prompt": PROMPTS[:2], "n": 2, "temperature": 0, "max_tokens": 3}
    found = answer(llm, [many, {"input": PROMPTS[:2]}])
    choices = found[1]["response"]["body"]["choices"]
    assert [one["index"] for one in choices] == [0, 1, 2, 3]
    assert choices[0]["text"] == choices[1]["text"] != choices[2]["text"]
    vectors = [one["embedding"] for one in found[2]["response"]["body"]["data"]]
    expected = llm.embed(PROMPTS[:2], use_tqdm=False)
    assert vectors == [one.outputs.embedding for one in expected]


def test_bad_rows_are_answered_with_their_error(llm: LLM) -> None:
    bad: list[Any] = [
        {"prompt": "a", "temperature": -1},
        {"prompt": "word " * 2000},
        {"prompt": "a", "stream": True},
        {"messages": []},
        {"body": {"model": "gpt-4", "prompt": "a"}, "url": "/v1/completions"},
        {"input": "a", "dimensions": 100_000},
        {"prompt": "a", "guided_json": {"type": "none"}},
        {"prompt": "a", "structured_outputs": {"regex": "("}},
    ]
    good = {"prompt": "a", "max_tokens": 2}
    found = answer(llm, [one for row in bad for one in (row, good)])
    for i, place in enumerate(
        ["temperature", "prompt", "stream", "messages", "model", "dimensions", "guided_json",
         "structured_outputs.regex"]
    ):  # fmt: skip
        wrong, right = found[2 * i + 1], found[2 * i + 2]
        assert wrong["response"]["status_code"] in (400, 404), wrong
        assert wrong["response"]["body"]["error"]["param"] == place
        assert wrong["error"]["message"] == wrong["response"]["body"]["error"]["message"]
        assert right["response"]["status_code"] == 200 and right["error"] is None


def test_a_bug_of_ours_is_the_error_of_its_row(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from flyweight.batch import answering

    real = answering.prepare_completion

    async def prepare(model: Any, http: Any, body: Any) -> Any:
        if body.seed == 13:
            raise ZeroDivisionError
        return await real(model, http, body)

    monkeypatch.setattr(answering, "prepare_completion", prepare)
    found = answer(llm, [{"prompt": "a", "seed": 13}, {"prompt": "a", "seed": 14}])
    assert found[1]["error"]["code"] == "internal_error" and found[2]["error"] is None


def test_rows_are_read_as_the_engine_gets_to_them(llm: LLM) -> None:
    taken = 0

    def rows() -> Iterator[Row]:
        nonlocal taken
        for taken in range(1, 10_000):
            yield Row(taken, 0, b'{"prompt": "a", "max_tokens": 1}')

    answerer = RowAnswerer(llm, ServerSettings())
    answers = answerer.answer(rows())
    for done in range(1, 300):
        next(answers)
        assert taken - done <= 3 * llm.loaded.limits.max_num_seqs
    answers.close()  # type: ignore[attr-defined]
    answerer.close()
    assert not llm.loop.live and llm.generate("a", use_tqdm=False)


def test_defaults_and_names(llm: LLM) -> None:
    rows = [{"prompt": "a"}, {"prompt": "a", "max_tokens": 2}, {"prompt": "a", "model": "mine"},
            {"prompt": "a", "label": 1}]  # fmt: skip
    options = {"max_tokens": 5, "temperature": 0.0}
    found = answer(
        llm, rows, sampling_defaults=options, served_model_name=("mine",),
        ignore_unknown_fields=True,
    )  # fmt: skip
    used = [found[i]["response"]["body"]["usage"]["completion_tokens"] for i in range(1, 5)]
    assert used == [5, 2, 5, 5] and found[3]["response"]["body"]["model"] == "mine"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = write_rows(tmp_path / "in.jsonl", [{"prompt": "a", "max_tokens": 3}, "no json"])
    out = tmp_path / "out.jsonl"
    words = ["batch", "stories", str(given), str(out)]
    assert main([*words, "--json", "--threads", "1"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["answered"], summary["errors"]) == (2, 2, 1)
    assert read_lines(out).keys() == {"row-1", "row-2"}
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("0 of 2 rows answered") and "2 were answered before; 1 with an" in said
    for wrong, named in (
        (["batch", "none/model", *words[2:]], "none/model"),
        ([*words[:3], str(given)], "output"),
        ([*words, "--temperature", "-1"], "temperature"),
        ([*words, "--max-num-seqs", "0"], "max_num_seqs"),
    ):
        (tmp_path / "in.jsonl").write_text('{"prompt": "other"}\n')
        out.unlink(missing_ok=True)
        assert main(wrong) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: ") and line.count("\n") == 1 and named in line


@pytest.mark.long
def test_a_job_that_is_killed_goes_on(tmp_path: Path) -> None:
    rows = [{"prompt": PROMPTS[i % 4], "max_tokens": 12, "temperature": 0} for i in range(80)]
    given, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "flyweight", "batch", "stories", str(given), str(out),
               "--max-num-seqs", "2"]  # fmt: skip
    kills = 0
    while kills < 3:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            had = out.stat().st_size if out.exists() else 0
            while process.poll() is None and (not out.exists() or out.stat().st_size <= had):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        kills += 1
    summary = run_batch(given, out, LocalRunner(SETTINGS))
    assert summary.done_before > 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(int(line["custom_id"][4:]) for line in lines) == list(range(1, 81))
    texts = {(i - 1) % 4: set[str]() for i in range(1, 5)}
    for line in lines:
        number = int(line["custom_id"][4:]) - 1
        texts[number % 4].add(line["response"]["body"]["choices"][0]["text"])
    assert [len(found) for found in texts.values()] == [1, 1, 1, 1]


def test_without_a_terminal_progress_is_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    summary = BatchSummary("in", "out", rows=9, done_before=2)
    with BatchProgress() as shown:
        shown.begin(9, 2)
        for seconds in (1.0, 59.0, 61.0, 100.0, 122.0):
            summary.answered += 1
            summary.completion_tokens += 61
            summary.seconds = seconds
            shown.report(summary)
    assert capsys.readouterr().err.splitlines() == [
        "5 of 9 rows, 3 tokens/s, 0 errors", "7 of 9 rows, 2 tokens/s, 0 errors",
    ]  # fmt: skip
