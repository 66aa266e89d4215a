"""The settings of an engine for processes of other hosts.

Invariant: a file or folder is named by its whole path; a model of the Hub or of the package has its
name, as every host has it in another place.  A home folder (~) is that of this host.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flyweight.describe import ASSETS, INSIDE
from flyweight.speculation import read_speculation
from flyweight.speculation_methods import BUNDLED_HEADS, SETTING
from flyweight.weights.folder import SAFETENSORS, TORCH

FOLDER = "models--"  # of a repository in the Hub's cache


class Snapshot(NamedTuple):
    """Files of the Hub at a commit, under the name that means them alone."""

    name: str
    commit: str


def locate_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for a process with another working directory, maybe on another host.  Raises
    `ConfigError`.
    """
    found = dict(settings)
    if settings.get("model"):
        found["model"] = _locate_model(str(settings["model"]), settings.get("revision"))
    if settings.get("adapters"):
        found["adapters"] = {name: locate(path) for name, path in settings["adapters"].items()}
    folder = settings.get("prefix_cache_dir")
    if folder:  # which each host makes
        found["prefix_cache_dir"] = os.path.abspath(os.path.expanduser(folder))
    config = read_speculation(settings.get(SETTING) or "")
    if config is not None and "model" in config.options:
        found[SETTING] = {**config.write(), "model": locate(config.options["model"])}
    return found


def locate(path: str | os.PathLike[str]) -> str:
    """The whole path of a file or folder; another name as it is."""
    name = os.fspath(path)
    given = os.path.expanduser(name)
    inside = name in INSIDE or name in BUNDLED_HEADS
    return name if inside or not os.path.exists(given) else os.path.abspath(given)


def find_snapshot(path: Path) -> Snapshot | None:
    """What the Hub calls a file or folder of its cache; None for other paths."""
    for commit in (path, *path.parents):
        repo = commit.parent.parent.name
        if commit.parent.name == "snapshots" and repo.startswith(FOLDER):
            name = repo.removeprefix(FOLDER).replace("--", "/", 1)
            want = str(path.relative_to(commit)) if path != commit else _name_weights(path)
            return Snapshot(f"{name}:{want}" if want else name, commit.name)
    return None


def _name_weights(folder: Path) -> str:
    """What a name needs besides the repository's, so that the files of a folder are meant."""
    tensors = (folder / SAFETENSORS.single, folder / SAFETENSORS.index)
    return "" if any(map(Path.is_file, tensors)) else TORCH.single


def _locate_model(model: str, revision: object) -> str:
    """A path in the Hub's cache was found there where it is of this very `revision`."""
    path = Path(model)
    if path.parent == ASSETS and path.stem in INSIDE:
        return path.stem
    snapshot = find_snapshot(path)
    return snapshot.name if snapshot and snapshot.commit == revision else locate(model)
