"""`flyweight bench` from end to end, on the model inside, with tiny sizes."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from flyweight.cli.main import main

SMALL = ("-p", "16", "-n", "3", "-r", "1")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["bench", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_kernels_prints_a_table_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "kernels", *SMALL, "-d", "0,32", "-b", "1,2", "--batch_gen", "2")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("| model | size | params | backend | threads | test | t/s | GB/s |")
    tests = [line.split(" | ")[5] for line in lines[2:8]]
    assert tests == ["pp16", "tg3", "pp16 @ d32", "tg3 @ d32", "tg2 b2", "tg2 b2 @ d32"]
    assert {line.split(" | ")[9] for line in lines[2:8]} == {"–"}  # caches hold this model
    assert lines[9].split("; ")[1].endswith("cores") and "flyweight" in lines[9]
    assert lines[10].startswith("deterministic: always on; overhead: n/a") and len(lines) == 11


def test_kernels_goes_on_where_it_was_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    said(capsys, "kernels", "-p", "16", "-n", "0", "-r", "1", "--results", str(file))
    first = file.read_text()
    code, out, _ = said(capsys, "kernels", *SMALL, "--results", str(file), "-o", "jsonl")
    assert code == 0
    assert [json.loads(line)["test"] for line in out.splitlines()] == ["tg3"]  # pp16 is there
    assert file.read_text().startswith(first) and len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "words, message",
    [
        (("-o", "xml"), "output = 'xml'; allowed: md, csv, json, jsonl, html"),
        (("-p", "0", "-n", "0"), "there is nothing to measure"),
        (("-r", "0"), "repetitions = 0 is out of range"),
        (("-d", "33"), "nearest valid: 32"),
        (("--vs", "llamacpp"), "ik_llama.cpp (did you mean 'llama.cpp'?)"),
        (("--vs", "openvino", "--vs-python", "/none/python"), "vs_python = '/none/python'"),
        (("--vs", "llama.cpp", "--vs-binary", "/none"), "vs_binary = '/none' is not a program"),
        (("-x",), "see flyweight bench kernels --help"),
    ],
)
def test_refusals_are_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, out, err = said(capsys, "kernels", "-p", "16", "-n", "0", "-r", "1", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [("kernels", "--results"), ("latency", "--output-json"), ("throughput", "--output-json")],
)
def test_a_file_that_cannot_be_written_is_found_before_the_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, str]
) -> None:
    command, option = words
    name = option.strip("-").replace("-", "_")
    for file, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "f", "No such file")):
        code, out, err = said(capsys, command, "none.gguf", option, str(file))
        assert (code, out) == (2, "")
        assert f"{name} = {str(file)!r}: {why}" in err and err.count("\n") == 1
    good = tmp_path / "good"
    assert said(capsys, command, "none.gguf", option, str(good))[0] == 2
    assert not good.exists()


def test_results_that_are_no_text_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\xff\xfe")
    code, out, err = said(capsys, "kernels", *SMALL, "--results", str(file))
    assert (code, out) == (2, "") and "this is not text" in err and err.count("\n") == 1
    assert file.read_bytes() == b"GGUF\xff\xfe"


def test_the_group_names_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "kernel")
    assert code == 2
    assert "unknown command 'kernel' (did you mean 'kernels'?)" in err
    assert "see flyweight bench --help" in err


def test_at_a_terminal_the_bar_leaves_stdout_alone(tmp_path: Path) -> None:
    """The rows are in the file, whole, and the bar on the terminal."""
    terminal, side = pty.openpty()
    words = [sys.executable, "-m", "flyweight.cli.main", "bench", "kernels", *SMALL]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=side)
    os.close(side)
    drawn = b""
    with suppress(OSError):  # how the end of a terminal is reported
        while part := os.read(terminal, 4096):
            drawn += part
    assert process.stdout is not None
    lines = process.stdout.read().decode().splitlines()
    assert process.wait() == 0
    assert [line.split(" | ")[5] for line in lines[2:4]] == ["pp16", "tg3"]
    assert b"tg3" in drawn and b"MiB" not in drawn
