"""Batches in Parquet: the same rows and answers as in JSON Lines, and an output written once."""

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from batch_texts import write_table
from echo_runner import EchoRunner
from flyweight.batch import parquet
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


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts `batches` that are decoded and `rows` that are converted."""
    import pyarrow.parquet

    counts = Counter[str]()

    class CountedFile(pyarrow.parquet.ParquetFile):
        def iter_batches(self, *given: Any, **named: Any) -> Iterator[Any]:
            for batch in super().iter_batches(*given, **named):
                counts["batches"] += 1
                yield CountedBatch(batch, counts)

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", CountedFile)
    return counts


@dataclass(frozen=True)
class CountedBatch:
    batch: Any
    counts: Counter[str]

    @property
    def num_rows(self) -> int:
        return int(self.batch.num_rows)

    def slice(self, first: int) -> "CountedBatch":
        return CountedBatch(self.batch.slice(first), self.counts)

    def to_pylist(self) -> list[Any]:
        self.counts["rows"] += self.num_rows
        found: list[Any] = self.batch.to_pylist()
        return found


def write_long(folder: Path, *, size: int) -> parquet.ParquetRows:
    rows = [{"prompt": str(number)} for number in range(1, 2001)]
    return parquet.ParquetRows(write_table(folder / "in.parquet", rows, size))


@needs_arrow
@pytest.mark.parametrize("size", [2000, 900, 300, 7])
def test_reads_from_a_row_on(tmp_path: Path, size: int) -> None:
    """Of any size of row groups, in any order, from one object or from several."""
    file = write_long(tmp_path, size=size)
    for first in (1, 250, 257, 258, 700, 699, 901, 1999, 2000, 2001, 256):
        for rows in (file, parquet.ParquetRows(file.path)):
            some = list(islice(rows.read(first), 300))
            expected = [*range(first, min(first + 300, 2001))]
            assert [one.number for one in some] == expected
            assert [json.loads(one.data)["prompt"] for one in some] == [*map(str, expected)]


@needs_arrow
def test_rows_before_the_first_are_not_converted(tmp_path: Path, read: Counter[str]) -> None:
    """As replicas read their shares; a row group is as large as the file."""
    for first in range(1, 2001, 250):
        file = write_long(tmp_path, size=2000)
        read.clear()
        assert len([*islice(file.read(first), 250)]) == 250
        assert read["rows"] < 250 + parquet.ROWS
    read.clear()
    assert len(list(file.read(1990))) == 11 and read["rows"] == 11


@needs_arrow
def test_shares_that_follow_decode_a_row_group_once(tmp_path: Path, read: Counter[str]) -> None:
    """Every second share, as one of two replicas may get them; of small groups, its own alone."""
    for size, batches in ((2000, 8), (500, 8), (10, 50)):
        file = write_long(tmp_path, size=size)
        read.clear()
        for first in range(1, 2001, 100):
            if first // 100 % 2:
                assert len([*islice(file.read(first), 50)]) == 50
        assert read["batches"] == batches
    again = read["batches"]
    assert next(file.read(5)).number == 5 and read["batches"] > again, "it begins again"


@needs_arrow
def test_a_read_that_fails_keeps_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_long(tmp_path, size=2000)
    whole = parquet.encode_row

    def fail(row: dict[str, Any]) -> bytes:
        if row["prompt"] == "300":
            raise OSError(5, "Input/output error")
        return whole(row)

    assert next(file.read(290)).number == 290
    monkeypatch.setattr(parquet, "encode_row", fail)
    with pytest.raises(ConfigError, match="Input/output error"):
        list(file.read(295))
    monkeypatch.setattr(parquet, "encode_row", whole)
    assert [one.number for one in file.read(295)] == [*range(295, 2001)]


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
