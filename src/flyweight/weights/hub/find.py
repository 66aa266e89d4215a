"""From a Hub name to a path: what is in the cache first, then the Hub.

Invariant: a path that is returned leads to everything its model needs.  A copy in the cache is used
without a call; only `newest` checks for a newer one.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import parse_object, printable, read_bytes, shown
from flyweight.weights.folder import SAFETENSORS, TORCH
from flyweight.weights.gguf_names import find_architecture
from flyweight.weights.hub.cache import find_cache_folder, find_snapshot
from flyweight.weights.hub.download import SHA256, Download, DownloadListener, RemoteFile
from flyweight.weights.hub.faults import Unreachable, make_offline_error, translate_errors
from flyweight.weights.hub.names import (
    FileChoice,
    HubName,
    choose,
    choose_gguf,
    group_gguf_files,
    list_vocabulary_files,
)

COMMIT = re.compile("[0-9a-f]{40}")
PATIENCE = 10.0  # seconds for the Hub to answer a look-up
TRIES, LONGEST_WAIT = 5, 60  # where it requests a later retry


@dataclass(frozen=True, slots=True)
class HubSearch:
    """`room` bytes of memory are there for the weights; `accept` raises `CheckpointError` for a
    config.json of a model we do not run, before its weights are fetched.
    """

    room: int | None = None
    offline: bool = False
    newest: bool = False
    accept: Callable[[Mapping[str, Any]], object] = lambda config: None


@dataclass(frozen=True, slots=True)
class HubListing:
    """One revision of a repository, as the Hub lists it."""

    commit: str
    files: Mapping[str, RemoteFile]
    architecture: str

    @property
    def sizes(self) -> dict[str, int]:
        return {name: file.size for name, file in self.files.items()}


def find(name: HubName, search: HubSearch, tell: DownloadListener) -> Path:
    """The file or folder to open.  Raises `CheckpointError`."""
    from huggingface_hub import constants

    kept = find_cached(name)
    if kept is not None and not search.newest:
        return kept
    if search.offline or constants.HF_HUB_OFFLINE:
        if kept is None:
            raise make_offline_error(name)
        return kept
    try:
        with translate_errors(name):
            return _fetch(name, search, tell)
    except Unreachable as error:
        if kept is None:
            raise Unreachable(f"{error}; {name} is not in the cache either") from None
        tell.note(f"{error}; the copy in the cache will do")
        return kept


def find_cached(name: HubName) -> Path | None:
    """What the cache holds under a name, where it is whole."""
    folder = find_snapshot(name)
    if folder is None:
        return None
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }
    try:
        choice = choose(name, files)
        if choice.index:
            choice = _replace_index(choice, folder / choice.index)
    except CheckpointError:
        return None
    lacks_words = not choice.weights[0].endswith(".gguf") and not list_vocabulary_files(files)
    if lacks_words or any(file not in files for file in choice.weights):
        return None
    return _find_weights(folder, choice)


def _fetch(name: HubName, search: HubSearch, tell: DownloadListener) -> Path:
    listing = list_files(name, tell)
    choice = choose(name, listing.sizes, search.room)
    download = Download(name, listing.commit, find_cache_folder(), tell)
    if choice.companions:
        choice = _refine_choice(name, choice, listing, search, download)
    elif listing.architecture:
        find_architecture({"general.architecture": listing.architecture}, str(name))
    size = sum(listing.files[file].size for file in choice.weights if file in listing.files)
    tell.note(f"{name}: {choice.what} of {size / (1 << 20):.1f} MiB, {choice.why}")
    gone = [file for file in choice.weights if file not in listing.files]
    if gone:
        raise CheckpointError(f"{name}: {shown(gone[0])} is in the index but not on the Hub")
    download.fetch([listing.files[file] for file in choice.weights])
    download.remember(name.revision or "main")
    return _find_weights(download.path(""), choice)


def _refine_choice(
    name: HubName, choice: FileChoice, listing: HubListing, search: HubSearch, download: Download
) -> FileChoice:
    """The choice once config and index are read: its parts, or GGUF files in its place where we do
    not run the safetensors.
    """
    first = [*choice.companions, *([choice.index] if choice.index else [])]
    download.fetch([listing.files[file] for file in first])
    config = download.path("config.json")
    try:
        if "config.json" in choice.companions:
            search.accept(parse_object(read_bytes(config), f"{name}: config.json"))
    except CheckpointError as error:
        if name.want or not group_gguf_files(listing.files):
            text = str(error)
            raise CheckpointError(text if str(name) in text else f"{name}: {text}") from None
        chosen = choose_gguf(name, listing.sizes, search.room)
        return replace(chosen, why=f"{chosen.why}; its safetensors are not for us: {error}")
    return _replace_index(choice, download.path(choice.index)) if choice.index else choice


def _replace_index(choice: FileChoice, index: Path) -> FileChoice:
    """The files an index names, in place of the index."""
    name = index.name
    suffix = TORCH.suffix if name == TORCH.index else SAFETENSORS.suffix
    listed = parse_object(read_bytes(index), name).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise CheckpointError(f"{name}: weight_map must map tensor names to file names")
    weights = tuple(sorted(set(listed.values())))
    odd = [file for file in weights if "/" in file or not file.endswith(suffix)]
    if odd or not weights:
        raise CheckpointError(f"{name}: {shown(odd)} are not the names of {suffix} files")
    return replace(choice, weights=weights)


def _find_weights(folder: Path, choice: FileChoice) -> Path:
    """A folder where the reader will find the weights by itself; else their first file."""
    alone = choice.index or choice.weights in ((SAFETENSORS.single,), (TORCH.single,))
    return folder if alone else folder / choice.weights[0]


def list_files(name: HubName, tell: DownloadListener) -> HubListing:
    """What the Hub has under a name, with retries."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    revision = name.revision or "main"
    for tries in range(TRIES):
        try:
            info = HfApi().model_info(
                name.repo, revision=revision, files_metadata=True, timeout=PATIENCE
            )
            break
        except HfHubHTTPError as error:
            wait = _wait(error.response, tries)
            if wait is None:
                raise
            status = error.response.status_code
            tell.note(f"the Hub is busy ({status}); trying again in {wait} s")
            time.sleep(wait)
    commit = str(info.sha)
    if not COMMIT.fullmatch(commit):
        raise ValueError(f"the revision {printable(commit[:80])} is not a commit")
    siblings = info.siblings or []
    files = {
        s.rfilename: RemoteFile(s.rfilename, s.size or 0, _check_sha256(s.lfs)) for s in siblings
    }
    gguf = getattr(info, "gguf", None)
    found = gguf.get("architecture") if isinstance(gguf, dict) else ""
    return HubListing(commit, files, found if isinstance(found, str) else "")


def _wait(response: Any, tries: int) -> int | None:
    """Seconds until the next try; None where there is no sense in one."""
    if response.status_code not in (429, 502, 503, 504) or tries == TRIES - 1:
        return None
    delay = str(response.headers.get("retry-after", ""))
    wait = int(delay) if delay.isdecimal() and len(delay) < 6 else 1 << tries
    return wait if wait <= LONGEST_WAIT else None


def _check_sha256(lfs: Any) -> str:
    found = str(getattr(lfs, "sha256", "") or "")
    return found if SHA256.fullmatch(found) else ""
