"""Rows of an input: numbers, digests, forms of requests, and what is wrong with them."""

import json
from pathlib import Path

import msgspec
import pytest

from flyweight.batch.files import open_rows
from flyweight.batch.requests import read_custom_id, read_fields, read_request
from flyweight.batch.rows import MAX_ROW, JsonLines, Row, RowIndex, parse_row_id
from flyweight.errors import ConfigError, RequestError


def test_rows_are_numbered_as_lines_and_blank_lines_are_none(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\n  \n{"b":2}\n{"c":3}')
    found = list(JsonLines(file).read())
    assert [(row.number, row.data) for row in found] == [
        (1, b'{"a":1}'),
        (4, b'{"b":2}'),
        (5, b'{"c":3}'),
    ]
    for row in found:  # a row is found again at its position
        assert next(JsonLines(file).read(row.number, row.position)) == row


def test_a_row_that_is_too_long_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"x" * (2 * MAX_ROW + 5) + b'\n{"prompt":"b"}\n')
    long, short = JsonLines(file).read()
    assert len(long.data) == MAX_ROW + 1 and short.data == b'{"prompt":"b"}'
    assert next(JsonLines(file).read(2, short.position)) == short
    with pytest.raises(RequestError, match="more than 8388608 bytes"):
        read_fields(long.data)


def test_an_id_names_the_row_and_what_it_was() -> None:
    row = Row(17, 0, b'{"prompt":"a"}')
    assert parse_row_id(row.id) == (17, row.digest)
    assert row.digest != row._replace(data=b'{"prompt":"b"}').digest
    for text in ("", "batch_req_", "batch_req_1_", "batch_req_-1_0", row.id + "0", row.id.upper()):
        assert parse_row_id(text) is None


def test_an_index_knows_what_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(f"{i}\n" for i in range(20)) + "\n\n")
    index = RowIndex(JsonLines(file))
    rows = list(index.file.read())
    assert index.rows == 20 and list(index.read_pending()) == rows
    assert all(index.mark(row.number, row.digest, "") for row in rows[::3])
    assert not index.mark(1, rows[0].digest, "")
    assert index.done == 7 and list(index.read_pending()) == [r for r in rows if r.number % 3 != 1]
    for number in (0, 2, 21, 10**12):
        with pytest.raises(ConfigError, match=f"answers a row {number} that"):
            index.mark(number, rows[0].digest, "output, line 1")


def test_rows_that_are_added_during_a_run_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("1\n2\n\n3")
    index = RowIndex(JsonLines(file))
    pending = index.read_pending()
    assert [next(pending).number, next(pending).number] == [1, 2]
    with file.open("a") as more:
        more.write("\n\n" + "x\n" * 20 + '{"half')
    assert [row.number for row in pending] == [4]
    index.finish(2)
    assert [row.number for row in index.read_pending()] == [1, 4]


@pytest.mark.parametrize("text", ["1\n2\n", "1\n2\n30\n", "1\n0\n3\n", "1\n\n2\n3\n", ""])
def test_an_input_that_changes_while_it_is_read_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("1\n2\n3")
    index = RowIndex(JsonLines(file))
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"^input = '.*in.jsonl' changed while it was read; run"):
        list(index.read_pending())


LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "b"}}


@pytest.mark.parametrize(
    ("row", "url", "body"),
    [
        (LINE, "/v1/completions", {"prompt": "b"}),
        ({"prompt": "b", "n": 2, "custom_id": 5}, "/v1/completions", {"prompt": "b", "n": 2}),
        ({"messages": []}, "/v1/chat/completions", {"messages": []}),
        ({"input": "b"}, "/v1/embeddings", {"input": "b"}),
    ],
)
def test_forms_of_rows(row: dict[str, object], url: str, body: dict[str, object]) -> None:
    found = read_request(read_fields(json.dumps(row).encode()))
    assert (found.url, json.loads(found.body)) == (url, body)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[1]", "the row is not a JSON object"),
        ('{"prompt": NaN}', "the row is not valid JSON"),
        ("[" * 5000, "the row is not"),
        ("{}", "prompt is missing; allowed: exactly one of messages, prompt, input, or OpenAI's"),
        ('{"prompt": "a", "messages": []}', "prompt and messages exclude each other"),
        ('{"url": "/v1/completions"}', "body is missing"),
        ('{"body": {}}', "url is missing"),
        ('{"body": {}, "url": "/v1/completion"}', "did you mean '/v1/completions'"),
        ('{"body": {}, "url": 3}', "url = '3' is not valid"),
        ('{"body": {}, "url": "/v1/completions", "method": "GET"}', "method = 'GET' is not valid"),
        ('{"body": {}, "url": "/v1/completions", "methods": "GET"}', "did you mean 'method'"),
    ],
)
def test_bad_rows_are_named(row: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(read_fields(row.encode()))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_custom_ids() -> None:
    def read(value: object) -> str:
        return read_custom_id({"custom_id": msgspec.Raw(json.dumps(value).encode())}, 7)

    assert (read("a"), read(12), read(None), read_custom_id({}, 7)) == ("a", "12", "row-7", "row-7")
    for wrong in (1.5, ["a"], "x" * 513):
        with pytest.raises(RequestError, match="custom_id"):
            read(wrong)


def test_refusals_of_inputs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"input = '.*' does not exist"):
        open_rows(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="is not a file"):
        open_rows(tmp_path)
