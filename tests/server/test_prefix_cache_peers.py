"""Two servers: the second takes the blocks of a prompt from the first."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from peer_servers import SMALL, find_address, serving
from prometheus_client.parser import text_string_to_metric_families

from http_server import SERVE, Running

BODY = {"prompt": "One day, " * 60, "max_tokens": 12, "temperature": 0, "logprobs": 1}
NAME = "flyweight:peer_"


def complete(running: Running) -> tuple[str, list[float], int]:
    """The text, its log-probabilities, and the cached tokens."""
    reply = running.post("/v1/completions", BODY).json
    [choice], details = reply["choices"], reply["usage"]["prompt_tokens_details"]
    return choice["text"], choice["logprobs"]["token_logprobs"], details["cached_tokens"]


def read_metrics(running: Running) -> dict[str, float]:
    page = running.get("/metrics").body.decode()
    samples = [s for f in text_string_to_metric_families(page) for s in f.samples]
    return {s.name: s.value for s in samples if s.name.startswith(NAME)}


def test_a_prompt_is_computed_once_by_two_servers(tmp_path: Path) -> None:
    listen = ("--prefix-cache-listen", "127.0.0.1:0", "--prefix-cache-peer-rate", "100MiB")
    with serving(tmp_path, "first", b"s" * 32, *listen) as one:
        one.post("/v1/completions", {**BODY, "max_tokens": 1})  # answered when peers find it
        stored = sum(path.stat().st_size for path in (tmp_path / "first").glob("*.blocks"))
        first = complete(one)
        tokens = one.post("/tokenize", {"prompt": BODY["prompt"]}).json["count"]
        peers = ("--prefix-cache-peers", f"{find_address(one)}, 127.0.0.1:1")
        with serving(tmp_path, "second", b"s" * 32, *peers) as two:
            again = complete(two)
            found = read_metrics(two)
            rows: Any = two.get("/v1/engine/effective").json
        with serving(tmp_path, "third", b"t" * 32, *peers) as three:
            alone = complete(three)
            three.until(lambda: "it refused our secret" in "".join(three.said))
            refused = read_metrics(three)[f"{NAME}refusals_total"]
        complete(one)
        sent = read_metrics(one)
        assert one.stop(signal.SIGTERM) == 0
    hits = (tokens - 1) // 32 * 32
    assert again[:2] == alone[:2] == first[:2] and (first[2], again[2], alone[2]) == (hits, hits, 0)
    assert stored >= tokens // 32 * found[f"{NAME}received_bytes_total"] / (hits // 32)
    assert found[f"{NAME}hit_tokens_total"] == hits and refused == 1
    assert found[f"{NAME}received_bytes_total"] == sent[f"{NAME}sent_bytes_total"] > 0
    assert found[f"{NAME}transfers_given_up_total"] == 0
    assert sent[f"{NAME}refusals_total"] == 1 and "127.0.0.1:1" in str(rows)
    assert "".join(three.said).count("it refused our secret") == 1


@pytest.mark.parametrize(("words", "said"), [
    (("--prefix-cache-peers", "a:1"), "needs a secret that the peers share"),
    (("--prefix-cache-peers", "a"), "nearest valid: a:8100"),
    (("--prefix-cache-listen", "127.0.0.1:0", "--prefix-cache-secret-file", "/dev/null"),
     "is no regular file"),
])  # fmt: skip
def test_bad_values_are_refused_in_one_line(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    ended = subprocess.run(
        [sys.executable, *SERVE, "--port", "0", *SMALL, "--prefix-cache-dir", str(tmp_path),
         *words],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    [error] = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert said in error
