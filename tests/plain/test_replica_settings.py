"""Options of replicas: what is valid, and what the refusals name."""

from dataclasses import replace
from typing import Any

import pytest

from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.server.lifecycle import start
from flyweight.server.lifecycle.hosts import divide_machine, plan_replicas
from flyweight.server.model_options import ModelOptions, ModelSources
from flyweight.server.settings import ServerSettings
from flyweight.validation.replicas import find_replica_bounds, find_replica_option


@pytest.mark.parametrize(
    ("given", "option", "bounds"),
    [
        ({}, "", (1, 1)),
        ({"replicas": 3}, "--replicas", (3, 3)),
        ({"autoscale": "1:8"}, "--autoscale", (1, 8)),
        ({"ray_address": "auto"}, "--ray-address", (1, 1)),
        ({"ray_address": "ray.example:6379", "replicas": 2}, "--replicas", (2, 2)),
    ],
)
def test_what_requests_replicas(
    given: dict[str, Any], option: str, bounds: tuple[int, int]
) -> None:
    server = ServerSettings(**given)
    assert find_replica_option(server) == option and find_replica_bounds(server) == bounds


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"replicas": 0}, "nearest valid: 1"),
        ({"replicas": 2000}, "nearest valid: 1024"),
        ({"autoscale": "8:2"}, "autoscale = '8:2' is not valid; allowed: MIN:MAX"),
        ({"autoscale": "8:2"}, "nearest valid: 8:8"),
        ({"autoscale": "4"}, "nearest valid: 1:2"),
        ({"autoscale": "1:9999"}, "nearest valid: 1:1024"),
        ({"autoscale": "1:4", "replicas": 2}, "cannot be combined with --replicas"),
        ({"ray_address": "ray://host:1"}, "allowed: HOST:PORT, or auto"),
        ({"routing": "round-robin"}, "has no effect on one engine process"),
        ({"routing": "random", "replicas": 2}, "allowed: prefix, round-robin, power-of-two"),
    ],
)
def test_what_is_not_valid(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ServerSettings(**given)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("installed", "models", "server", "sources", "words"),
    [
        (
            False,
            1,
            {},
            ModelSources(),
            "--replicas needs Ray; pip install",
        ),
        (True, 2, {}, ModelSources(), "--replicas cannot be combined with several models"),
        (True, 1, {}, ModelSources("models.yaml"), "cannot be combined with --models-file"),
        (True, 1, {"allow_pull": True}, ModelSources(), "cannot be combined with --allow-pull"),
    ],
)
def test_what_replicas_do_not_have(
    installed: bool, models: int, server: dict[str, Any], sources: ModelSources, words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(start, "_is_installed", lambda module: installed)
    options = [ModelOptions(Settings(), (f"m{i}",)) for i in range(models)]
    with pytest.raises(ConfigError) as refused:
        start.check_replicas(options, ServerSettings(replicas=2, **server), sources)
    assert words in str(refused.value)
    start.check_replicas(options, ServerSettings(**server), sources)  # without replicas


def test_replicas_of_several_hosts_each_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_is_installed", lambda module: True)
    model = ModelOptions(Settings(nnodes=2, tensor_parallel_size=2))
    with pytest.raises(ConfigError) as refused:
        start.check_replicas([model], ServerSettings(replicas=2), ModelSources())
    assert str(refused.value) == (
        "--replicas cannot be combined with --nnodes; leave one of them out"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefix_cache_peers", "127.0.0.1:8100"),
        ("prefix_cache_listen", "127.0.0.1:0"),
        ("prefix_cache_secret_file", "secret"),
    ],
)
def test_replicas_have_a_directory_and_no_peers(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_is_installed", lambda module: True)
    kept = ModelOptions(Settings(prefix_cache_dir="blocks", prefix_cache_gb=2))
    start.check_replicas([kept], ServerSettings(replicas=2), ModelSources())
    given: dict[str, Any] = {"prefix_cache_secret_file": "secret", name: value}
    model = ModelOptions(replace(kept.settings, **given))
    with pytest.raises(ConfigError) as refused:
        start.check_replicas([model], ServerSettings(autoscale="1:2"), ModelSources())
    option = f"--{name.replace('_', '-')}"
    assert str(refused.value) == (
        f"--autoscale cannot be combined with {option}: replicas do not exchange blocks; "
        "leave one of them out"
    )


def test_replicas_may_have_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_is_installed", lambda module: True)
    model = ModelOptions(Settings(adapters={"one": "folder"}))
    start.check_replicas([model], ServerSettings(replicas=2), ModelSources())


def test_replicas_of_this_machine_share_what_one_engine_would_have() -> None:
    settings = Settings(threads=9, memory_limit="4GiB", kv_cache_memory_bytes=1 << 30)
    model = ModelOptions(settings)
    part = divide_machine(model, ServerSettings(autoscale="1:4")).settings
    assert part.threads == 2 and part.memory_limit == part.kv_cache_memory_bytes * 4 == 1 << 30
    there = ServerSettings(replicas=4, ray_address="auto")
    assert divide_machine(model, there) is model
    assert divide_machine(model, ServerSettings()) is model
    assert plan_replicas(settings, there).cores == 9
    assert plan_replicas(Settings(), there).cores == 0, "a whole machine"
    assert plan_replicas(settings, ServerSettings(replicas=4)).cores == 1
