"""Every option of `flyweight serve` that was given has a row in the ledger."""

from pathlib import Path
from typing import Any

import pytest

from flyweight.arguments.options import Flag
from flyweight.cli.serve.choices import ELSEWHERE, ServeChoice, choose
from flyweight.cli.serve.options import OPTIONS, SUPPORTS
from flyweight.cli.serve.words import read
from flyweight.errors import ConfigError
from flyweight.server.chat_format import ChatFormat
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.effective_config import EffectiveConfiguration
from flyweight.server.observability.model_summary import ModelSummary

FACTS = {
    "max_model_len": 512, "blocks": 10, "block_size": 32, "max_num_seqs": 4,
    "max_num_batched_tokens": 64, "prefix_caching": True, "threads": 2, "spread": "",
    "isa": "scalar",
    "kv_dtype": "f16", "kv_sample": 0.0, "memory": {"weights": 1, "kv": 1, "need": 2, "limit": 4},
}  # fmt: skip
PORTRAIT = ModelSummary("llama", 1_500_000_000, ("Q4_K",), 1024, "gguf")
KINDS = {"whole": ["64"], "count": ["2k"], "size": ["2KiB"], "number": ["0.5"], "switch": []}
VALUES = {  # of options that a number is no value of
    "device": ["cpu"],
    "dtype": ["auto"], "quantization": ["gguf"], "load-format": ["gguf"],
    "chat-template": ["{{ messages }}"], "tool-call-parser": ["hermes"],
    "reasoning-parser": ["qwen3"], "generation-config": ["vllm"], "enable-lora": [],
    "max-model-len": ["256"], "memory-limit": ["1GiB"], "kv-cache-dtype": ["f16"],
    "activations": ["bf16"], "scheduling-policy": ["fcfs"], "scheduler": ["static"],
    "uvicorn-log-level": ["warning"],
    "speculative-config": ['{"method": "ngram", "num_speculative_tokens": 2}'],
    "override-generation-config": ['{"temperature": 0.3}'],
    "default-chat-template-kwargs": ['{"enable_thinking": false}'],
    "log-file": ["some/file.log"], "log-file-bytes": ["1MiB"],
    "log-format": ["json"], "host": ["::1"], "allowed-origins": ["https://page.example"],
    "lora-modules": ["a=some/folder"], "max-schema-depth": ["8"], "max-stop-strings": ["8"],
    "overload-steps": ["max_tokens=8"],
    "otlp-traces-endpoint": ["http://localhost:4318/v1/traces"],
    "enable-prefix-caching": [], "share-prefix-cache": [], "root-path": ["/models"],
    "nnodes": ["2"], "node-rank": ["1"], "master-addr": ["127.0.0.2"],
    "prefix-cache-listen": ["127.0.0.1:8100"], "prefix-cache-peers": ["127.0.0.1:8101"],
    "autoscale": ["1:2"], "ray-address": ["127.0.0.1:6379"], "routing": ["round-robin"],
}  # fmt: skip
SHARED = ["--prefix-cache-dir", "blocks", "--prefix-cache-secret-file", "key"]
NODES = ["-tp", "2", "--nnodes", "2"]
ALSO = {
    "nnodes": ["-tp", "2"], "node-rank": [*NODES, "--headless"], "master-addr": NODES,
    "master-port": NODES, "node-secret-file": NODES,
    "enable-expert-parallel": ["-tp", "2"],
    "prefix-cache-secret-file": ["--prefix-cache-dir", "blocks"],
    "prefix-cache-peers": SHARED, "prefix-cache-listen": SHARED,
    "prefix-cache-peer-rate": [*SHARED, "--prefix-cache-listen", "127.0.0.1:8100"],
    "enable-lora": ["--lora-modules", "a=b"], "lora-modules": ["--enable-lora"],
    "ssl-keyfile": ["--ssl-certfile", "cert.pem"], "preferred-batch": ["--batch-wait-ms", "5"],
    "routing": ["--replicas", "2"],
}  # fmt: skip


def rows(choice: ServeChoice) -> dict[str, dict[str, Any]]:
    ledger = EffectiveConfiguration(
        choice.settings, choice.server, choice.requests, FACTS, PORTRAIT
    )
    ledger.add_chat_format(ChatFormat(None, None, {}))
    reported = ledger.document(ServerCounters(512))["features"]
    assert len({row["feature"] for row in reported}) == len(reported)
    return {row["feature"]: row for row in reported}


def values(flag: Flag, tmp_path: Path) -> list[str]:
    if flag.name == "api-key-file":
        file = tmp_path / "keys"
        file.write_text("secret-of-a-file\n")
        return [str(file)]
    support = SUPPORTS.get(flag.name)
    if support is not None and flag.kind != "switch":
        return [
            ("3" if " " in support.accepted[0] else support.accepted[0])
            if support.accepted
            else "x"
        ]
    return VALUES.get(flag.name, KINDS.get(flag.kind, ["some-words"]))


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_an_option_that_is_given_has_a_row(name: str, tmp_path: Path) -> None:
    """Or is refused by name, or is among those that are reported elsewhere, with the place."""
    flag = OPTIONS[name]
    if name in ELSEWHERE:
        return
    support = SUPPORTS.get(name)
    off = support is not None and flag.kind == "switch" and "on" not in support.accepted
    words = [f"--{'no-' if off else ''}{name}", *values(flag, tmp_path)]
    try:
        choice = choose(read([*words, *ALSO.get(name, [])]))
    except ConfigError as error:
        assert support is not None and not support.accepted
        assert f"--{name}" in str(error) and "is not supported" in str(error)
        return
    requested = f", {choice.requests.given[name]}, "
    reported = [row for row in rows(choice).values() if requested in f", {row['requested']}, "]
    assert reported and "secret-of-a-file" not in str(reported)
    assert all(row["effective"] and row["reason"] for row in reported)


def test_a_row_has_what_is_active_and_why() -> None:
    found = rows(
        choose(
            read(["--max-body-bytes=2KiB", "--no-ignore-unknown-fields", "--port=0", "--seed=7"])
        )
    )
    row = found["--max-body-bytes"]
    assert (row["requested"], row["effective"]) == ("--max-body-bytes 2KiB", "2048")
    assert row["reason"] == "requested: max size of a request body"
    assert (
        found["--ignore-unknown-fields"]["requested"],
        found["--ignore-unknown-fields"]["effective"],
    ) == ("--no-ignore-unknown-fields", "off")
    assert found["--port"]["effective"] == "any free port" and found["--seed"]["effective"] == "7"


def test_a_key_is_mentioned_but_never_shown() -> None:
    row = rows(choose(read(["--api-key", "hidden"])))["API key"]
    assert row["requested"] == "--api-key" and row["effective"] == "required"


def test_nothing_given_has_no_rows_of_options() -> None:
    assert not [name for name in rows(choose(read([]))) if name.startswith("--")]


def test_what_is_reported_elsewhere_exists() -> None:
    assert ELSEWHERE.keys() <= OPTIONS.keys() and all(ELSEWHERE.values())
