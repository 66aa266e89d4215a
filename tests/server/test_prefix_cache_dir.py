"""Servers that start again with the blocks of the one before, however that one ended."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyweight.kv.records import ALIGN, HEAD
from http_server import SERVE, Running, started

BODY = {"prompt": "One day, " * 60, "max_tokens": 12, "temperature": 0, "logprobs": 1}
SWAPPED = "vllm:cpu_cache_usage_perc"
SMALL = ("--threads", "1", "--max-model-len", "256", "--memory-limit", "2GiB")


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[Running]:
    with started(*SMALL, "--prefix-cache-dir", str(folder), *words) as running:
        yield running


def complete(running: Running, **more: object) -> tuple[str, list[float], int]:
    """The text, its log-probabilities, and the cached tokens."""
    reply = running.post("/v1/completions", {**BODY, **more}).json
    [choice], details = reply["choices"], reply["usage"]["prompt_tokens_details"]
    return choice["text"], choice["logprobs"]["token_logprobs"], details["cached_tokens"]


def read_metrics(running: Running) -> dict[str, float]:
    """Samples by name and source."""
    page = running.get("/metrics").body.decode()
    samples = [s for f in text_string_to_metric_families(page) for s in f.samples]
    return {s.name + s.labels.get("source", ""): s.value for s in samples}


def wait_until_saved(running: Running, folder: Path, blocks: int) -> None:
    """An idle server saves what was published."""
    size = [0, 0]

    def settled() -> bool:
        size[0] = sum(path.stat().st_size for path in folder.glob("*.blocks"))
        size[1] = size[1] or size[0]
        return size[0] > 4096 + (blocks - 1) * 1000

    running.until(settled)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_server_finds_the_blocks(tmp_path: Path, end: signal.Signals) -> None:
    with serving(tmp_path) as running:
        first = complete(running)
        tokens = running.post("/tokenize", {"prompt": BODY["prompt"]}).json["count"]
        if end is signal.SIGKILL:
            wait_until_saved(running, tmp_path, tokens // 32)
        running.process.send_signal(end)
        running.process.wait(60)
    with serving(tmp_path) as running:
        again = complete(running)
        found = read_metrics(running)
        assert complete(running, cache_salt="mine")[2] == 0
        rows = running.get("/v1/engine/effective").json
    assert again[:2] == first[:2] and first[2] == 0
    assert again[2] == (tokens - 1) // 32 * 32
    assert found["vllm:external_prefix_cache_hits_total"] == again[2]
    assert found["vllm:external_prefix_cache_queries_total"] == tokens
    assert found["vllm:prefix_cache_hits_total"] == 0
    assert found[SWAPPED] == 0, "there is no swap space"
    by_source = "vllm:prompt_tokens_by_source_total"
    assert found[f"{by_source}external_kv_transfer"] == again[2]
    assert found[f"{by_source}local_cache_hit"] == 0
    assert found[f"{by_source}local_compute"] == tokens - again[2]
    assert str(tmp_path) in str(rows)


def test_a_killed_engine_process_leaves_its_blocks_to_the_next(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        first, before = complete(running), running.worker
        wait_until_saved(running, tmp_path, 5)
        subprocess.run(["kill", "-9", str(before)], check=True)
        running.until(lambda: read_metrics(running)["flyweight:engine_restarts_total"] == 1)
        running.until(lambda: running.get("/health").status == 200)
        again = complete(running)
    assert again[:2] == first[:2] and again[2] > 0


def test_swap_space_is_an_option() -> None:
    """What is evicted goes there; the share in use is a metric."""
    words = "--num-gpu-blocks-override", "9", "--max-num-seqs", "1", "--swap-space", "0.1"
    with started(*SMALL, *words) as running:
        first = complete(running)
        rows = running.get("/v1/engine/effective").json
        room = running.get("/server_info").json["engine"]["swap_space"]
        assert read_metrics(running)[SWAPPED] == 0
        complete(running, prompt="The sun " * 90)
        found = read_metrics(running)
        assert complete(running)[:2] == first[:2]
    assert "swap space, 0.1 GiB" in str(rows) and room == int(0.1 * 2**30)
    evicted = found["flyweight:evicted_blocks_total"]
    record = found[SWAPPED] * room / evicted
    assert evicted > 0 and record > HEAD
    assert record == pytest.approx(round(record / ALIGN) * ALIGN)


@pytest.mark.parametrize("words", [
    ("--prefix-cache-dir", "/dev/null"),
    ("--prefix-cache-dir", "DIR", "--prefix-cache-gb", "0.00001"),
    ("--swap-space", "900"),
])  # fmt: skip
def test_bad_values_are_refused_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    given = [str(tmp_path) if word == "DIR" else word for word in words]
    ended = subprocess.run(
        [sys.executable, *SERVE, "--port", "0", *SMALL, *given],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    named = {word.lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
    assert any(name in errors[0].replace("-", "_") for name in named)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        first = complete(running)
        command = [
            sys.executable,
            *SERVE,
            "--port",
            "0",
            *SMALL,
            "--prefix-cache-dir",
            str(tmp_path),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2 and "is in use by another engine" in ended.stderr
        assert complete(running)[:2] == first[:2]
