"""`flyweight plan roofline`: ceilings of devices and of this machine, and what is refused."""

import json

import pytest


def test_a_size_alone_on_a_device(command) -> None:
    """70B of 16 bits are 140 GB a token; 3,350 GB/s read them 23.9 times a second."""
    words = ("plan", "roofline", "--params", "70B", "--bits", "16", "--device", "h100-80")
    got = json.loads(command(*words, "--json").out)
    rows = {row["step"]: row for row in got["tables"]["speed"]["rows"]}
    assert rows["decode × 1"]["bytes"] == 140e9
    assert rows["decode × 1"]["ceiling_tokens_per_second"] == pytest.approx(3350 / 140)
    assert rows["decode × 1"]["limit"] == "memory" and rows["prefill 512"]["limit"] == "compute"
    assert "140 GB" in command(*words).out


def test_this_machine_fits_the_terminal(command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    got = command("plan", "roofline", "stories", "--threads", "1", "-b", "1,4", "--plot")
    assert got.code == 0 and max(map(len, got.out.splitlines())) <= 80
    for words in ("TTFT, 512 tokens", "ITL", "share", "micro-benchmark", "made-up weights"):
        assert words in got.out


def test_a_device_without_peaks_says_nothing_of_prompts(command) -> None:
    got = json.loads(command("plan", "roofline", "--device", "laptop-16", "--json").out)
    assert got["tables"]["speed"]["rows"][0]["step"] == "decode × 1"


def test_a_model_in_other_bits(command) -> None:
    """Llama 2 7B in q8_0, 34 bytes for 32 weights: all but the embedding are read for a token."""
    words = ("plan", "roofline", "llama-2-7b", "--device", "l4", "--context", "1", "--json")
    got = json.loads(command(*words, "--bits", "8").out)
    row = next(row for row in got["tables"]["speed"]["rows"] if row["step"] == "decode × 1")
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008
    weights = (32 * layer + 32000 * 4096) * 34 / 32
    assert row["bytes"] == weights + 32 * 2 * 4096 * 2  # and K and V of one position


@pytest.mark.long
def test_check_prints_measurements_too(command, monkeypatch) -> None:
    monkeypatch.setattr("flyweight.planning.predict.ROUNDS", 1)
    got = json.loads(
        command("plan", "roofline", "--check", "--threads", "1", "-b", "1", "--json").out
    )
    rows = got["tables"]["check"]["rows"]
    assert [row["test"] for row in rows] == ["pp510", "tg32", "tg32 b8"]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["predicted_seconds"] / row["measured_seconds"])


@pytest.mark.parametrize(
    "words, said",
    [
        (["--device", "h100"], "h100-80"),
        (["--params", "8B", "--check"], "leave params out"),
        (["--bits", "4", "--check"], "leave bits out"),
        (["llama-2-7b", "--bits", "7"], "nearest valid: 8"),
        (["llama-2-7b", "--check"], "only its published dimensions"),
        (["--prompt-tokens", "0"], "nearest valid: 1"),
        (["--params", "eight"], "8B"),
        (["--params", "8B", "--bits", "64"], "nearest valid: 32"),
        (["--batch", "0"], "nearest valid: 1"),
        (["--batch", ""], "nearest valid: 1"),
    ],
)
def test_refusals_are_one_line(command, words, said) -> None:
    got = command("plan", "roofline", *words)
    assert got.code == 2 and got.out == "" and got.err.count("\n") == 1
    assert said in got.err, got.err
