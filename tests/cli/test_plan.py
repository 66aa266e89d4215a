"""`flyweight plan`: its forms of output, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

Command = Callable[..., SimpleNamespace]


def test_memory_by_the_courses_formula(command: Command) -> None:
    done = command("plan", "memory", "--params", "8b", "--bits", "4")
    assert done.code == 0 and "4.8 GB" in done.out and done.err == ""
    assert "llama-3-8b" in done.out  # whose exact figure is next to it
    assert max(map(len, done.out.splitlines())) <= 80


def test_memory_as_json(command: Command) -> None:
    done = command("plan", "memory", "--params", "1B,8B", "--bits", "4,16", "--json")
    rows = json.loads(done.out)["tables"]["estimate"]["rows"]
    assert [(row["params"], row["bits"]) for row in rows] == [
        (1e9, 4), (1e9, 16), (8e9, 4), (8e9, 16),
    ]  # fmt: skip
    assert rows[2]["bytes"] == pytest.approx(4.8e9)


def test_the_curve_of_memory_against_size(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"
    words = ("plan", "memory", "--params", "1B,3B,8B,70B", "--bits", "4,8,16", "--plot")
    done = command(*words, "--svg", file)
    assert "● 4 bits   ▲ 8 bits   ■ 16 bits" in done.out
    assert file.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("memory", "--params", "eight"), "params = 'eight'"),
        (("memory", "--params", "0"), "above 0"),
        (
            ("memory", "--params", "8B", "--device", "nosuch"),
            "device = 'nosuch' is unknown",
        ),
        (("memory", "--params", "8B", "--device", "laptop-8"), "device does not apply to params"),
        (("memory", "--params", "8B", "--context", "nine"), "context = 'nine'"),
        (("memory", "--params", "8B", "--context", "99"), "context does not apply to params"),
        (("memory", "--params", "8B", "--memory", "lots"), "memory = 'lots'"),
        (("memory", "--params", "8B", "--memory", "4GiB"), "give a MODEL such as llama-3-8b"),
        (("memory", "--params", "8B", "--memory-limit", "50%"), "memory_limit does not apply"),
        (("memory", "--params", "8B", "--sequences", "2"), "sequences does not apply"),
        (("memory", "--params", "8B", "--draft-model", "x"), "draft_model does not apply"),
        (("memory", "--params", "8B", "--check"), "check does not apply"),
        (("memory", "--bits", "33"), "1 to 32; nearest valid: 32"),
        (("memory", "--params", "8B", "--plot", "--json"), "exclude each other"),
        (("memory", "--params", "8B", "--svg", "/no/such/folder/a.svg"), "does not exist"),
        (("memori",), "unknown command 'memori' (did you mean 'memory'?)"),
    ],
)
def test_refusals_are_one_line(command: Command, words: tuple[str, ...], said: str) -> None:
    done = command("plan", *words)
    assert done.code == 2 and done.out == ""
    assert said in done.err and done.err.count("\n") == 1


def test_memory_of_a_model_next_to_the_courses_figure(command: Command) -> None:
    done = command("plan", "memory", "stories", "--context", "512", "--device", "laptop-8")
    assert done.code == 0, done.err
    for words in ("course: 2.755M at 8.52 bits", "exact: 1 sequence of 512", "planned peak"):
        assert words in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_device_has_no_more_than_its_memory(command: Command) -> None:
    words = ("--device", "laptop-8", "--memory-limit", "900GiB", "--json")
    rows = json.loads(command("plan", "memory", *words).out)["tables"]["devices"]["rows"]
    assert [row["allowed_bytes"] for row in rows] == [8 << 30]


def test_memory_of_a_model_is_that_of_inspect(command: Command, folder: Path) -> None:
    """The same plan, but for the processes of a server."""
    words = ("--kv-cache-dtype", "f16", "--json")
    found = json.loads(command("plan", "memory", folder, "--context", 256, *words).out)
    parts = {row["part"]: row["bytes"] for row in found["tables"]["parts"]["rows"]}
    own = json.loads(
        command("inspect", folder, "--max-model-len", 256, "--max-num-seqs", 1, *words).out
    )["memory"]
    assert {name: parts[name] for name in own if name in parts} == {
        name: size for name, size in own.items() if name in parts
    }
    assert len(own.keys() & parts.keys()) >= 5


def test_kv_of_a_well_known_model_needs_no_file(command: Command) -> None:
    done = command("plan", "kv", "--model", "llama-2-7b", "--seq", "2048")
    assert done.code == 0 and "1.00 GiB" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seq", "-5"), "seq = -5 is out of range; allowed: 1 to 16777216; nearest valid: 1"),
        (("--seq", "2.6"), "nearest valid: 3"),
        (("--batch", "1.5"), "batch = '1.5' is not a whole number"),
        (("--memory", "0"), "1MiB or more"),
        (("--memory", "24"), "nearest valid: 1MiB; 24GiB with a unit"),
        (("--model", "lama-2-7b"), "did you mean 'llama-2-7b'"),
        (("stories", "--model", "stories"), "exclude each other"),
    ],
)
def test_kv_refusals(command: Command, words: tuple[str, ...], said: str) -> None:
    done = command("plan", "kv", *words)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("quant", "--params", "7B"), "0.875 GB"),
        (("quant", "--params", "70B"), "42 GB"),
        (("cost", "--gpu-hourly", "2.0", "--latency", "0.5", "--tokens", "100"), "$2.78"),
        (("breakeven",), "483,000"),
        (("device", "--req-per-day", "5000"), "the course rule"),
        (("parallel", "--gpus", "4"), "Megatron-LM"),
    ],
)
def test_reports_fit_a_terminal(command: Command, words: tuple[str, ...], said: str) -> None:
    done = command("plan", *words)
    assert done.code == 0 and said in done.out, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    assert json.loads(command("plan", *words, "--json").out)["tables"]


def test_energy_says_what_cannot_be_read(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.plan.energy.measure_cpu_watts", lambda seconds: None)
    monkeypatch.setattr("flyweight.plan.energy.read_gpu_watts", lambda: None)
    done = command("plan", "energy")
    assert "38.5" in done.out and "720.0" in done.out and done.out.count("unavailable") == 2
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cost", "--tokens", "0"), "tokens = 0 is out of range; allowed: above 0"),
        (("cost", "--gpu-hourly", "abc"), "gpu_hourly = 'abc' is not a number; allowed: above 0"),
        (("cost", "--gpu-hourly", "abc"), "nearest valid: 2"),
        (("breakeven", "--electricity", "-1"), "allowed: 0 or more; nearest valid: 0"),
        (("device", "--cpu-idle", "x"), "cpu_idle = 'x' is not a number; allowed: 0 or more"),
        (("breakeven", "--cloud-price", "0"), "nearest valid: 0.01"),
        (("energy", "--gpu-watts", "-3"), "nearest valid: 350"),
        (("device", "--req-per-day", "0"), "req_per_day = 0 is"),
        (("device", "--cpu-idle", "200"), "is more than cpu_watts = 120; nearest valid: 120"),
        (("device", "--gpu-watts", "40"), "is more than gpu_watts = 40; nearest valid: 40"),
        (("energy", "--queries", "0"), "nearest valid: 1000000"),
        (("quant", "--params", "eight"), "nearest valid: 8B"),
        (("quant", "stories", "--params", "7B"), "exclude each other"),
        (("parallel", "--tp", "3"), "allowed: 1, 2, 4; nearest valid: 2"),
        (("parallel", "--device", "h100"), "device = 'h100'"),
        (("parallel", "--device", "laptop-8"), "has no published peak"),
        (("parallel", "--threads", "1"), "threads does not apply to GPUs; leave it out, or give"),
        (("parallel", "--context", "9"), "context does not apply to GPUs"),
        (("parallel", "--ranks", "2", "--gpus", "8"), "gpus does not apply to ranks; leave it out"),
        (("parallel", "--ranks", "1"), "ranks = 1 is out of range; allowed: 2 to 64"),
        (
            ("parallel", "--ranks", "7"),
            "ranks = 7 divides neither the model's heads",
        ),
        (("parallel", "--ranks", "2", "--link-us", "-1"), "link_us = -1 is out of range"),
        (("parallel", "--ranks", "2", "--link-us", "5"), "link_gbs and link_us are given together"),
    ],
)
def test_other_refusals(command: Command, words: tuple[str, ...], said: str) -> None:
    done = command("plan", *words)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1


def test_ranks_of_this_machine(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process first, then two ranks of each kind; a link that is given is not measured."""
    monkeypatch.setattr("flyweight.bench.limits.LEAST_BYTES", 4 << 20)
    monkeypatch.setattr("flyweight.bench.limits.REPEATS", 1)
    monkeypatch.setattr("flyweight.planning.rank_limits.SAMPLES", 1)
    link = ("--link-us", "50", "--link-gbs", "1")
    words = ("plan", "parallel", "--ranks", "2", "--threads", "2", *link)
    done = command(*words)
    shown = " ".join(done.out.split())
    assert done.code == 0 and "NUMA node" in shown and "as given: 50 us and 1 GB/s" in shown, (
        done.err
    )
    assert max(map(len, done.out.splitlines())) <= 80
    tables = json.loads(command(*words, "--json").out)["tables"]
    for name, micro in (("decode", 1), ("prompt", 8)):
        rows = tables[name]["rows"]
        assert [(row["tp"], row["pp"], row["micro"]) for row in rows] == [
            (1, 1, 1), (2, 1, 1), (1, 2, micro),
        ]  # fmt: skip
        assert rows[0]["speedup"] == 1.0
