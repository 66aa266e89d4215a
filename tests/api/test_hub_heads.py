"""Heads by their name on the Hub: the unpatched client, in a process of its own, against a stand-in
Hub on this machine.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flyweight.describe import ASSETS
from hub_server import Hub, Repo, serving
from torchwriter import torch_bytes
from warm_commands import Commands, warmed

HEADS = {path.name: path.read_bytes() for path in (ASSETS / "stories-medusa").iterdir()}
CONFIG = {"method": "medusa", "model": "tiny/heads", "num_speculative_tokens": 4}
Run = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module")
def serving_hub() -> Iterator[Hub]:
    with serving(Hub()) as found:
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub") / "hf"


@pytest.fixture(scope="module")
def commands(serving_hub: Hub, home: Path) -> Iterator[Commands]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {"HF_HOME": str(home), "HF_ENDPOINT": serving_hub.endpoint}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with warmed(env) as call:
        yield call


@pytest.fixture
def hub(serving_hub: Hub, home: Path) -> Hub:
    """The stand-in with nothing in it, and nothing in the cache."""
    serving_hub.forget()
    shutil.rmtree(home, ignore_errors=True)
    return serving_hub


@pytest.fixture
def run(hub: Hub, commands: Commands) -> Run:
    """`flyweight run` of the model inside with a speculative_config."""

    def call(config: dict[str, object] | None, *more: str) -> SimpleNamespace:
        drafts = ["--speculative-config", json.dumps(config)] if config else []
        return commands("run", "stories", "Once", "--temperature", 0, "-n", 24, *drafts, *more)

    return call


def refuse(run: Run, config: dict[str, object], *more: str) -> str:
    got = run(config, *more)
    assert got.code == 2 and not got.out, got
    return got.err.splitlines()[-1]


def test_heads_are_downloaded_once_and_draft(hub: Hub, run: Run) -> None:
    hub.repos["tiny/heads"] = Repo(HEADS | {"README.md": b"# words"}, refs=("main", "v2"))
    plain = run(None)
    assert "in the cache" in refuse(run, CONFIG, "--offline")
    got = run(CONFIG)
    assert got.code == 0 and got.out == plain.out != "", got.err
    assert "tiny/heads: draft heads of " in got.err
    assert sorted(hub.bodies()) == ["config.json", "model.safetensors"]
    hub.requested.clear()
    again = run(CONFIG, "--offline")
    assert again.code == 0 and again.out == plain.out and not hub.requested
    got = run({**CONFIG, "revision": "v2"})
    assert got.code == 0 and got.out == plain.out, got.err
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
        assert run(CONFIG).code == 0
    said = refuse(run, {"model": "tiny/heads", "num_speculative_tokens": 4})
    assert "'tiny/heads' has heads for method medusa" in said
    assert said.endswith('nearest valid: "method": "medusa"')


def test_files_of_pytorch_are_found(hub: Hub, run: Run) -> None:
    """FasterDecoding's name; the tensors are of another model, which is refused once read."""
    raw = torch_bytes({"0.0.linear.weight": ("f32", (2, 2), bytes(16))})
    hub.repos["tiny/heads"] = Repo({"config.json": b"{}", "medusa_lm_head.pt": raw})
    assert "is [2, 2], this model needs [192, 192]" in refuse(run, CONFIG)
