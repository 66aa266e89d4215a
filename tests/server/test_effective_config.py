"""The effective configuration by itself, and what /proc reports: no server."""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from flyweight.arguments.draft import SettingRequest, SettingRequests
from flyweight.config import Settings
from flyweight.engine.metrics import EngineMetrics
from flyweight.server.lifecycle.running import (
    ProcessInfo,
    find_listener,
    get_start,
    list_family,
    measure_age,
    read_command,
)
from flyweight.server.observability.counters import ServerCounters
from flyweight.server.observability.effective_config import PATIENCE, EffectiveConfiguration
from flyweight.server.observability.model_summary import ModelSummary
from flyweight.server.settings import ServerSettings

FACTS = {
    "max_model_len": 512, "blocks": 10, "block_size": 32, "max_num_seqs": 4,
    "max_num_batched_tokens": 64, "prefix_caching": True, "threads": 2, "spread": "",
    "isa": "scalar",
    "kv_dtype": "f16", "kv_sample": 0.0, "memory": {"weights": 1, "kv": 1, "need": 2, "limit": 4},
}  # fmt: skip
PORTRAIT = ModelSummary("llama", 1_500_000_000, ("Q4_K", "Q6_K"), 1024, "gguf")


def ledger(given: dict[str, str] | None = None, **settings: object) -> EffectiveConfiguration:
    wishes = SettingRequests(given or {})
    return EffectiveConfiguration(Settings(**settings), ServerSettings(), wishes, FACTS, PORTRAIT)


def counted(**totals: int) -> ServerCounters:
    counts = ServerCounters(512)
    counts.update_engine(replace(EngineMetrics(), **totals), 0.0)
    return counts


def test_a_warning_comes_once_and_goes_with_the_first_effect() -> None:
    made = ledger()
    assert made.note(counted(finished=PATIENCE - 1)) == []
    (warning,) = made.note(counted(finished=PATIENCE))
    assert warning.startswith("prefix caching is on and has had no effect")
    assert made.note(counted(finished=10 * PATIENCE)) == []
    assert len(made.document(counted(finished=PATIENCE))["warnings"]) == 1
    assert made.document(counted(finished=PATIENCE, cached=1))["warnings"] == []


def test_a_compiled_shape_is_shown_with_its_count() -> None:
    shape = {"max_batch_size": 4, "max_input_len": 100, "max_output_len": 28}
    made = EffectiveConfiguration(
        Settings(), ServerSettings(), SettingRequests(), FACTS | {"compiled": shape}, PORTRAIT
    )
    counts = ServerCounters(512)
    counts.outside["max_input_len"] = 3
    (row,) = [r for r in made.document(counts)["features"] if r["feature"] == "compiled shape"]
    assert row["effective"] == "4 sequences of 100 tokens and 28 of answer"
    assert row["counter"] == {"counts": "limits exceeded by requests", "value": 3}
    plain = ledger().document(ServerCounters(512))["features"]
    assert "compiled shape" not in [row["feature"] for row in plain]


def test_what_requests_share_has_rows_with_counters() -> None:
    counts = counted(awaited=7)
    counts.count_joined = lambda: 2
    counts.count_token_query(True)
    counts.deadlines["refused"], counts.degraded["model"] = 3, 4
    rows = {row["feature"]: row for row in ledger().document(counts)["features"]}
    names = ["coalescing", "shared prefill", "token cache", "deadlines", "overload steps"]
    assert [rows[name]["counter"]["value"] for name in names] == [2, 7, 1, 3, 4]
    assert rows["overload steps"]["effective"] == rows["batching window"]["effective"] == "off"


def test_what_requests_share_can_be_switched_off() -> None:
    server = ServerSettings(
        coalesce_requests=False, token_cache_bytes=0, batch_wait_ms=5,
        overload_steps="max_tokens=8", max_priority=0,
    )  # fmt: skip
    given = {"batch-wait-ms": "--batch-wait-ms 5"}
    made = EffectiveConfiguration(
        Settings(), server, SettingRequests(given), FACTS | {"prefix_caching": False}, PORTRAIT
    )
    rows = {feature.name: feature for feature in made.features}
    assert rows["coalescing"].effective == rows["token cache"].effective == "off"
    assert rows["shared prefill"].effective == "choices of one prompt"
    assert rows["overload steps"].effective == "max_tokens=8"
    assert rows["deadlines"].effective == "without an order"
    window = rows["batching window"]
    assert (window.requested, window.effective) == ("--batch-wait-ms 5", "5 ms")


def test_unrequested_features_cause_no_warning() -> None:
    off = Settings(enable_prefix_caching=False)
    facts = FACTS | {"prefix_caching": False}
    made = EffectiveConfiguration(off, ServerSettings(), SettingRequests(), facts, PORTRAIT)
    assert made.note(counted(finished=PATIENCE)) == []


@pytest.mark.parametrize(
    "given, settings, counter, name",
    [
        ({"speculative-config": "--speculative-config {}"},
         {"speculative_config": {"num_speculative_tokens": 2}}, "accepted", "speculation"),
        ({"lora-modules": "--lora-modules a=b"}, {"adapters": {"a": "b"}}, "adapted", "LoRA"),
        ({"enable-chunked-prefill": "--enable-chunked-prefill"}, {}, "chunked", "chunked prefill"),
    ],
)  # fmt: skip
def test_requested_features_cause_a_warning(given, settings, counter: str, name: str) -> None:
    made = ledger(given, **settings)
    used = {"finished": PATIENCE, "cached": 1}
    (warning,) = made.note(counted(**used))
    assert warning.startswith(f"{name} is on")
    assert ledger(given, **settings).note(counted(**used, **{counter: 1})) == []
    (row,) = [r for r in made.document(counted(**used))["features"] if r["feature"] == name]
    assert row["requested"] == next(iter(given.values())) and row["counter"]["value"] == 0


def test_an_engine_that_starts_over_takes_nothing_back() -> None:
    made, counts = ledger(), ServerCounters(512)
    for totals in (
        EngineMetrics(steps=9, finished=90, cached=64),
        EngineMetrics(steps=1, finished=30),
    ):
        counts.update_engine(totals, 0.0)
    assert made.note(counts) == []
    (row,) = [r for r in made.document(counts)["features"] if r["feature"] == "prefix caching"]
    assert row["counter"]["value"] == 64 and row["warning"] is None
    assert made.document(counts)["sequences"]["finished"] == 120


def test_an_option_that_a_feature_covers_has_no_row_of_its_own() -> None:
    requested = {"enable-chunked-prefill": "--enable-chunked-prefill", "dtype": "--dtype auto"}
    notes = (
        SettingRequest(
            "--enable-chunked-prefill", requested["enable-chunked-prefill"], "always", "so it is"
        ),
        SettingRequest("--dtype", requested["dtype"], "auto", "as in the file"),
    )
    made = EffectiveConfiguration(
        Settings(), ServerSettings(), SettingRequests(requested, notes), FACTS, PORTRAIT
    )
    assert [feature.name for feature in made.noted] == ["--dtype"]


def test_a_shorter_context_names_memory_as_its_reason() -> None:
    rows = {r["feature"]: r for r in ledger().document(counted())["features"]}
    assert rows["context"]["reason"] == "of 1024, as memory allows"
    requested = ledger(max_model_len=512).document(counted())["features"]
    assert {r["feature"]: r for r in requested}["context"]["reason"] == "requested"


def test_a_portrait_in_words() -> None:
    assert PORTRAIT.size == "1.5 B" and PORTRAIT.quantisation == "Q4_K (and Q6_K)"


def test_processes_are_known_by_when_they_began() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        began = get_start(child.pid)
        assert began is not None and ProcessInfo(child.pid, began).alive
        assert ProcessInfo(child.pid, began) in list_family(os.getpid())
        assert 0 <= measure_age(child.pid) <= measure_age(os.getpid())
        while not read_command(child.pid):  # it has no words until its program is in place
            pass
        assert read_command(child.pid).split()[0] == os.path.basename(sys.executable)
    finally:
        child.kill()
        child.wait()
    assert not ProcessInfo(child.pid, began).alive and get_start(child.pid) is None


def test_the_process_that_listens_on_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        holder = find_listener(port)
        assert holder is not None and holder.pid == os.getpid()
    assert find_listener(port) is None


def test_options_of_a_command_line_are_not_shown() -> None:
    words = [sys.executable, "-c", "input()", "--api-key", "secret"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE)
    try:
        while "input" not in read_command(child.pid):
            pass
        assert "secret" not in read_command(child.pid) and "--" not in read_command(child.pid)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("opened", "says"), [(0, "of every matrix"), (3, "of 3 matrices, which are")]
)
def test_formats_without_a_kernel_are_reported(opened: int, says: str) -> None:
    portrait = replace(PORTRAIT, method="gptq", opened=opened)
    made = EffectiveConfiguration(Settings(), ServerSettings(), SettingRequests(), FACTS, portrait)
    (row,) = (f for f in made.features if f.name == "quantised weights")
    assert row.effective.startswith("gptq: Q4_K (and Q6_K)") and says in row.reason
    assert (says in row.effective) is bool(opened)  # the banner may show that alone
    assert not [f for f in ledger().features if f.name == "quantised weights"]


def test_that_drafting_has_ended_is_reported_until_the_engine_starts_over() -> None:
    made, counts = ledger(), counted(steps=9, drafting_ended=1)
    document = made.document(counts)
    assert document["speculation"]["ended"] is True
    assert any("ended drafting for all requests" in one for one in document["warnings"])
    counts.update_engine(EngineMetrics(steps=1), 0.0)
    document = made.document(counts)
    assert document["speculation"]["ended"] is False and document["warnings"] == []
