"""Batches in Parquet: the same rows and answers as in JSON Lines, and an output written once."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from echo_runner import EchoRunner
from flyweight.batch.files import open_rows
from flyweight.batch.job import run_batch
from flyweight.batch.rows import JsonLines
from flyweight.errors import ConfigError

needs_arrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is missing"
)
ROWS: list[dict[str, Any]] = [
    {"prompt": "a", "max_tokens": 3, "messages": None},
    {"prompt": None, "max_tokens": None, "messages": [{"role": "user", "content": "ü"}]},
    {"prompt": "c", "max_tokens": None, "messages": None},
]


def write_table(file: Path, rows: list[dict[str, Any]], size: int = 2) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=size)
    return file


@needs_arrow
def test_rows_are_those_of_json_lines(tmp_path: Path) -> None:
    file = open_rows(write_table(tmp_path / "in.parquet", ROWS))
    rows = list(file.read())
    expected = [{n: v for n, v in row.items() if v is not None} for row in ROWS]
    assert [json.loads(row.data) for row in rows] == expected
    assert [row.number for row in rows] == [1, 2, 3] and list(file.read(3)) == rows[2:]
    line = {"custom_id": "a", "url": "/v1/completions", "body": '{"prompt": "a"}'}
    (one,) = open_rows(write_table(tmp_path / "lines.parquet", [line])).read()
    assert json.loads(one.data)["body"] == {"prompt": "a"}


@needs_arrow
def test_null_fields_of_structs_are_left_out(tmp_path: Path) -> None:
    call: dict[str, Any] = {"id": "a", "function": {"name": "f", "arguments": "{}", "strict": None}}
    talk = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": "a"},
    ]
    rows = [
        {"messages": [{"role": "user", "content": "a"}], "stop": None},
        {"messages": talk, "stop": ["b", None]},
    ]
    file = open_rows(write_table(tmp_path / "in.parquet", rows))
    first, second = (json.loads(row.data) for row in file.read())
    assert first == {"messages": [{"role": "user", "content": "a"}]}
    del call["function"]["strict"], talk[0]["content"]
    assert second == {"messages": talk, "stop": ["b", None]}


@needs_arrow
def test_an_output_is_written_when_all_rows_are_answered(tmp_path: Path) -> None:
    import pyarrow.parquet

    given, out = write_table(tmp_path / "in.parquet", ROWS), tmp_path / "out.parquet"
    with pytest.raises(RuntimeError):
        run_batch(given, out, EchoRunner(breaks=3))
    assert not out.exists() and (tmp_path / "out.parquet.partial.jsonl").exists()
    again = EchoRunner(fails={3})
    summary = run_batch(given, out, again)
    assert again.answered == [3] and (summary.done_before, summary.errors) == (2, 1)
    found = pyarrow.parquet.read_table(out).to_pylist()
    assert [row["status_code"] for row in found] == [200, 200, 400]
    assert [row["text"] for row in found] == ["echo", "echo", None]
    assert found[2]["error"] == '{"code":"x"}' and json.loads(found[0]["response"])
    assert [path.name for path in tmp_path.iterdir()] != [] and not list(
        tmp_path.glob("*.partial*")
    )
    once_more = EchoRunner()
    assert run_batch(given, out, once_more).errors == 1 and once_more.answered == []
    more = write_table(tmp_path / "more.parquet", [*ROWS, ROWS[0]])
    with pytest.raises(ConfigError, match="does not answer all rows"):
        run_batch(more, out, EchoRunner())


@needs_arrow
def test_other_files_are_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "in.parquet"
    wrong.write_bytes(b"no table")
    with pytest.raises(ConfigError, match="not a Parquet file"):
        open_rows(wrong)
    with pytest.raises(ConfigError, match="No such file"):
        open_rows(tmp_path / "none.parquet")


def test_without_pyarrow_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigError, match=r"input = .* needs pyarrow; pip install pyarrow"):
        open_rows(tmp_path / "in.parquet")
    with pytest.raises(ConfigError, match=r"output = .* needs pyarrow"):
        run_batch(lines, tmp_path / "out.parquet", EchoRunner())
    assert list(JsonLines(lines).read())
