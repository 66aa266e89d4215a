"""The calibration: texts, JSON lines and chat messages to windows of tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.errors import ConfigError
from flyweight.quantize.calibration import CalibrationText, Reading

READING = Reading(
    lambda text: [ord(c) for c in text],
    lambda talk: "".join(f"<{m['role']}>{m['content']}" for m in talk),
)


def test_windows_follow_each_other() -> None:
    text = CalibrationText.of("x", ["".join(chr(i % 1000) for i in range(3000))])
    found = text.cut(READING, (7,), 5, 101)
    assert found.shape == (5, 101) and found.dtype == np.int32
    assert (found[:, 0] == 7).all()
    assert (found[:, 1:].reshape(-1) == np.arange(500) % 1000).all()


def test_a_short_text_has_fewer_windows_and_one_shorter_window_at_least() -> None:
    assert CalibrationText.of("x", ["a" * 450]).cut(READING, (), 9, 128).shape == (3, 128)
    assert CalibrationText.of("x", ["a" * 130]).cut(READING, (), 9, 512).shape == (1, 130)


def test_no_more_text_is_tokenized_than_is_needed() -> None:
    seen: list[int] = []

    def encode(text: str) -> list[int]:
        seen.append(len(text))
        return [1] * len(text)

    long = "".join(f"line {i}\n" for i in range(200_000))
    CalibrationText.of("x", [long]).cut(Reading(encode, READING.render), (), 4, 512)
    assert sum(seen) < 100_000 < len(long)


LINES = [
    "plain",
    {"text": "of text"},
    {"prompt": "of prompt", "answer": "none"},
    {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]},
]


def test_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("\n\n".join(map(json.dumps, LINES)) + "\n")
    found = CalibrationText.read(file)
    one = "plainof textof prompt<user>hello<assistant>hi" * 1
    ids = CalibrationText.of("y", [*found.texts] * 6).cut(READING, (), 1, 128)
    assert "".join(map(chr, ids[0])) == (one * 6)[:128]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "line 2 is not JSON: '{'"),
        ("[1]", r"line 2 is \[1\]; a text, or an object with text, prompt or messages"),
        ('{"content": "x"}', "line 2 is .*a text, or an object"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, line: str, error: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('"fine"\n' + line)
    with pytest.raises(ConfigError, match=error):
        CalibrationText.read(file)


@pytest.mark.parametrize(("raw", "error"), [(b"\xff\xfe", "is not UTF-8 at byte 0")])
def test_bad_files_are_refused(tmp_path: Path, raw: bytes, error: str) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match=error):
        CalibrationText.read(file)


def test_messages_need_a_template(full: Path, words: Any) -> None:
    from jobs import prepare

    from flyweight.errors import RequestError

    talk = CalibrationText.of("talk", [[{"role": "user", "content": "hello"}]])
    with pytest.raises(RequestError, match="this model has no chat template"):
        prepare(full, talk, method="gptq")
