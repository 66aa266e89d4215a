"""Heads by their name on the Hub: the unpatched client, in processes of its own, against a stand-in
Hub on this machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flyweight.describe import ASSETS
from hub_server import Hub, Repo, serving
from torchwriter import torch_bytes

HEADS = {path.name: path.read_bytes() for path in (ASSETS / "stories-medusa").iterdir()}
CONFIG = {"method": "medusa", "model": "tiny/heads", "num_speculative_tokens": 4}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub()) as found:
        yield found


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """`flyweight run` of the model inside with a speculative_config."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.endpoint}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)

    def call(config: dict[str, object] | None, *more: str) -> "subprocess.CompletedProcess[str]":
        drafts = ["--speculative-config", json.dumps(config)] if config else []
        words = ["run", "stories", "Once", "--temperature", "0", "-n", "24", *drafts, *more]
        command = [sys.executable, "-m", "flyweight.cli.main", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True)

    return call


def refuse(run: Run, config: dict[str, object], *more: str) -> str:
    got = run(config, *more)
    assert got.returncode == 2 and not got.stdout, got
    return got.stderr.splitlines()[-1]


def test_heads_are_downloaded_once_and_draft(hub: Hub, run: Run) -> None:
    hub.repos["tiny/heads"] = Repo(HEADS | {"README.md": b"# words"}, refs=("main", "v2"))
    plain = run(None)
    assert "in the cache" in refuse(run, CONFIG, "--offline")
    got = run(CONFIG)
    assert got.returncode == 0 and got.stdout == plain.stdout != "", got.stderr
    assert "tiny/heads: draft heads of " in got.stderr
    assert sorted(hub.bodies()) == ["config.json", "model.safetensors"]
    hub.requested.clear()
    again = run(CONFIG, "--offline")
    assert again.returncode == 0 and again.stdout == plain.stdout and not hub.requested
    got = run({**CONFIG, "revision": "v2"})
    assert got.returncode == 0 and got.stdout == plain.stdout, got.stderr
    assert "revision v9" in refuse(run, {**CONFIG, "revision": "v9"})
    inside = {**CONFIG, "model": "stories-medusa", "revision": "v2"}
    assert "'stories-medusa' is here; leave it out" in refuse(run, inside)


def test_what_the_hub_has_no_heads_for_is_refused(hub: Hub, run: Run) -> None:
    hub.repos["tiny/heads"] = Repo({"config.json": b"{}", "other.bin": b"x"})
    said = refuse(run, CONFIG)
    assert "tiny/heads: no draft heads; expected config.json and one of model.safetensors" in said
    assert "is neither a file or folder here nor a model" in refuse(
        run, {**CONFIG, "model": "tiny/hedas"}
    )
    hub.repos["tiny/heads"] = Repo(HEADS)
    said = refuse(run, {**CONFIG, "method": "eagle"})
    assert "which holds heads for method medusa" in said
    said = refuse(run, {**CONFIG, "model": "tiny/heads:Q4_0"})
    assert "heads have no choice of files; write tiny/heads" in said


@pytest.mark.parametrize("cached", [False, True])
def test_heads_named_without_a_method_are_refused_with_it(hub: Hub, run: Run, cached: bool) -> None:
    hub.repos["tiny/heads"] = Repo(HEADS)
    if cached:
        assert run(CONFIG).returncode == 0
    said = refuse(run, {"model": "tiny/heads", "num_speculative_tokens": 4})
    assert "'tiny/heads' has heads for method medusa" in said
    assert said.endswith('nearest valid: "method": "medusa"')


def test_files_of_pytorch_are_found(hub: Hub, run: Run) -> None:
    """FasterDecoding's name; the tensors are of another model, which is refused once read."""
    raw = torch_bytes({"0.0.linear.weight": ("f32", (2, 2), bytes(16))})
    hub.repos["tiny/heads"] = Repo({"config.json": b"{}", "medusa_lm_head.pt": raw})
    assert "is [2, 2], this model needs [192, 192]" in refuse(run, CONFIG)
