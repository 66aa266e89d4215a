"""Draft heads on the Hub: config.json and one file of tensors, from the cache first.

Invariant: a folder that is returned has both.  A copy in the cache is used without a call.
"""

from collections.abc import Sequence
from pathlib import Path

from flyweight.errors import CheckpointError
from flyweight.weights.hub.cache import find_cache_folder, find_snapshot
from flyweight.weights.hub.download import Download, DownloadListener
from flyweight.weights.hub.faults import Unreachable, translate_errors
from flyweight.weights.hub.find import list_files
from flyweight.weights.hub.names import HubName

CONFIG = "config.json"


def fetch_heads(
    name: HubName, tensors: Sequence[str], tell: DownloadListener, *, offline: bool
) -> Path:
    """The folder of the heads, with the first of the files `tensors` that there is.  Raises
    `CheckpointError`.
    """
    from huggingface_hub import constants

    if name.want:
        raise CheckpointError(f"{name}: heads have no choice of files; write {name.repo}")
    kept = find_snapshot(name)
    held = [kept / file for file in (CONFIG, *tensors)] if kept is not None else []
    if kept is not None and held[0].is_file() and any(file.is_file() for file in held[1:]):
        return kept
    if offline or constants.HF_HUB_OFFLINE:
        raise Unreachable(
            f"{name} is not in the cache, and offline the Hub is not called; start once with a "
            "network to download it"
        )
    with translate_errors(name):
        listing = list_files(name, tell)
        found = next((file for file in tensors if file in listing.files), None)
        if found is None or CONFIG not in listing.files:
            wanted = f"{CONFIG} and one of {', '.join(tensors)}"
            raise CheckpointError(f"{name}: no draft heads; expected {wanted}")
        size = listing.files[found].size
        tell.note(f"{name}: draft heads of {size / (1 << 20):.1f} MiB")
        download = Download(name, listing.commit, find_cache_folder(), tell)
        download.fetch([listing.files[CONFIG], listing.files[found]])
        download.remember(name.revision or "main")
    return download.path("")
