"""The output: resumed after a cut at any byte, and refused where it is something else."""

import os
from pathlib import Path

import msgspec
import pytest

from echo_runner import EchoRunner
from flyweight.batch.job import run_batch
from flyweight.batch.output import OutputFile
from flyweight.batch.rows import JsonLines, Row, RowIndex
from flyweight.errors import ConfigError


def write_input(folder: Path, rows: int = 3) -> Path:
    file = folder / "in.jsonl"
    file.write_text("".join(f'{{"prompt": "{i} ü"}}\n' for i in range(rows)))
    return file


def test_a_cut_at_any_byte_loses_one_row_at_most(tmp_path: Path) -> None:
    given, out = write_input(tmp_path), tmp_path / "out.jsonl"
    whole = EchoRunner()
    run_batch(given, out, whole)
    data = out.read_bytes()
    assert whole.answered == [1, 2, 3] and data.count(b"\n") == 3
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for size in range(len(data) + 1):
        out.write_bytes(data[:size])
        again = EchoRunner()
        summary = run_batch(given, out, again)
        # a line whose line feed alone is missing is whole
        kept = sum(end - 1 <= size for end in ends)
        assert again.answered == [1, 2, 3][kept:], size
        assert summary.done_before == kept and summary.answered == 3 - kept
        assert out.read_bytes() == data


def test_errors_of_before_are_counted_and_not_run_again(tmp_path: Path) -> None:
    given, out = write_input(tmp_path), tmp_path / "out.jsonl"
    run_batch(given, out, EchoRunner(fails={2}))
    again = EchoRunner()
    summary = run_batch(given, out, again)
    assert (summary.errors, summary.new_errors, again.answered) == (1, 0, [])


def test_rows_may_be_added_to_an_input(tmp_path: Path) -> None:
    given, out = write_input(tmp_path), tmp_path / "out.jsonl"
    run_batch(given, out, EchoRunner())
    with given.open("a") as file:
        file.write('{"prompt": "new"}\n')
    again = EchoRunner()
    run_batch(given, out, again)
    assert again.answered == [4]


def test_a_runner_that_fails_leaves_what_was_answered(tmp_path: Path) -> None:
    given, out = write_input(tmp_path), tmp_path / "out.jsonl"
    with pytest.raises(RuntimeError):
        run_batch(given, out, EchoRunner(breaks=3))
    again = EchoRunner()
    run_batch(given, out, again)
    assert again.answered == [3]


@pytest.mark.parametrize(
    "content",
    [
        b"my notes\n",
        b"my notes, without a line end",
        b'{"id":"other"}\n',
        b'{"id":"batch_req_1_0000000000000001"}\n',
        b'{"id":"batch_req_9_0000000000000001"}\n',
        b'{"id":"batch_req_1\n{}\n',
        b"\x00" * 10,
    ],
)
def test_another_file_is_refused_and_not_changed(tmp_path: Path, content: bytes) -> None:
    given, out = write_input(tmp_path), tmp_path / "out.jsonl"
    out.write_bytes(content)
    with pytest.raises(ConfigError, match=r"line 1: .* output") as caught:
        run_batch(given, out, EchoRunner())
    assert "\n" not in str(caught.value) and out.read_bytes() == content


def test_refusals_of_outputs(tmp_path: Path) -> None:
    given, out = write_input(tmp_path), tmp_path / "out.jsonl"
    with pytest.raises(ConfigError, match=r"output = .* is the input"):
        run_batch(given, given, EchoRunner())
    with pytest.raises(ConfigError, match="No such file"):
        run_batch(given, tmp_path / "none" / "out.jsonl", EchoRunner())
    with pytest.raises(ConfigError, match="not a regular file"):
        run_batch(given, Path("/dev/null"), EchoRunner())
    with OutputFile(out), pytest.raises(ConfigError, match="written by another process"):
        run_batch(given, out, EchoRunner())


def test_a_full_disk_is_one_line_and_the_job_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out = write_input(tmp_path), tmp_path / "out.jsonl"
    real, left = os.write, [100]

    def write(file: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        part = data[: left[0]]
        left[0] -= len(part)
        return real(file, part)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(ConfigError, match="No space left on device"):
        run_batch(given, out, EchoRunner())
    monkeypatch.undo()
    run_batch(given, out, EchoRunner())
    ids = [msgspec.json.decode(line)["id"] for line in out.read_bytes().splitlines()]
    assert ids == [row.id for row in JsonLines(given).read()]


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    class Many:
        path = tmp_path

        def read(self, number: int = 1, position: int = 0):  # type: ignore[no-untyped-def]
            return (Row(i, 0, b"%d" % i) for i in range(1, 100_001))

    index = RowIndex(Many())
    held = index._digests.itemsize * len(index._digests) + len(index._done)
    assert index.rows == 100_000 and held < 900_000
