"""bench/serving.py: servers in turn, and what is said of them."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_suite import script

from flyweight.config import Settings
from flyweight.describe import find

# takes llama-server's words and is our own server
STAND_IN = """#!{python}
import os, sys
words = sys.argv[1:]
said = dict(zip(words[::2], words[1::2]))
assert said["-np"] == "2" and said["-c"] == "512" and said["-fa"] == "off", words
os.execv(sys.executable, [sys.executable, "-m", "flyweight.cli.main", "serve", said["-m"],
                          "--port", said["--port"], "--threads", said["-t"]])
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("serving")
    tiny = ("--random-input-len", "10", "--random-output-len", "4", "--random-prefix-len", "40")
    monkeypatch.setattr(module, "REST", 0.1)
    monkeypatch.setattr(module, "LOADS", {"tiny": module.Load(6, 2, 256, tiny)})
    return module


def model() -> str:
    return str(find(Settings.of(model=None)))


def test_both_are_measured_in_turn(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    program, results = tmp_path / "llama-server", tmp_path / "rows.jsonl"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("LLAMA_SERVER", str(program))
    words = ["serving.py", model(), "--loads", "tiny", "--rounds", "1", "--scale", "0.5"]
    words += ["--threads", "1", "--llama-flags=-fa off", "--results", str(results)]
    monkeypatch.setattr(sys, "argv", words)
    bench.main()
    mine, other = (json.loads(line) for line in results.read_text().splitlines())
    assert (mine["engine"], other["engine"]) == ("flyweight", "llama.cpp")
    for row in (mine, other):
        assert (row["completed"], row["failed"], row["max_concurrency"]) == (3, 0, 2)
        assert (row["total_input_tokens"], row["total_output_tokens"]) == (150, 12)
    reported = capsys.readouterr()
    lines = reported.out.splitlines()
    assert lines[0] == "tiny: 3 requests, 2 at once; 1 rounds"
    assert lines[1].split() == ["flyweight", "llama.cpp", "better"]
    rate = next(line for line in lines if "output tokens/s" in line).split()
    ratio = mine["output_throughput"] / other["output_throughput"]
    assert rate[-1] == f"x{ratio:.2f}"


def test_a_server_that_does_not_start_is_reported_with_its_last_words(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho no such flag >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("LLAMA_SERVER", str(program))
    monkeypatch.setattr(
        sys, "argv", ["serving.py", model(), "--loads", "tiny", "--only", "llama.cpp"]
    )
    with pytest.raises(SystemExit):
        bench.main()
    assert "llama.cpp, tiny: failed; its last words:\nno such flag\n" in capfd.readouterr().err


def test_ratios_are_of_rounds_before_they_are_medians(bench: ModuleType) -> None:
    def row(engine: str, rate: float, wait: float) -> dict[str, object]:
        keys = dict.fromkeys((key for key, _ in bench.FIGURES.values()), wait)
        return keys | {
            "engine": engine, "output_throughput": rate, "num_prompts": 3,
            "client_us_per_chunk": 9.0,
        }  # fmt: skip

    rows = [row("flyweight", 10, 1), row("llama.cpp", 1, 4), row("flyweight", 20, 2),
            row("llama.cpp", 10, 4), row("flyweight", 30, 2), row("llama.cpp", 10, 2)]  # fmt: skip
    lines = [*bench.table("tiny", rows)]
    assert lines[2].split() == ["output", "tokens/s", "20.0", "10.0", "x3.00"]
    assert lines[3].split()[-3:] == ["2.0", "4.0", "x2.00"]
    rows[0]["median_ttft_ms"] = 0.0  # as of chunks that came together
    assert [*bench.table("tiny", rows)][3].split()[-1] == "4.0"
    alone = [*bench.table("tiny", [row("llama.cpp", 10, 1)])]
    assert alone[1].split() == ["llama.cpp"] and alone[2].split()[-1] == "10.0"


def test_the_loads_are_the_issues(bench: ModuleType) -> None:
    loads = script("serving").LOADS
    assert {name: load.streams for name, load in loads.items()} == {
        "mixed16": 16, "mixed64": 64, "document8": 8,
    }  # fmt: skip
    assert all(load.requests >= load.streams for load in loads.values())
