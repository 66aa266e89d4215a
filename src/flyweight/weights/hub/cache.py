"""What the Hub's cache on this machine holds, and removing from it.

Invariant: only what the client itself takes for a model of its cache is listed or removed, and what
another revision uses as well stays.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyweight.errors import CheckpointError, nearest
from flyweight.validation.untrusted import one_line
from flyweight.weights.folder import SAFETENSORS, TORCH
from flyweight.weights.hub.download import make_folder_name
from flyweight.weights.hub.names import HubName, find_label, group_gguf_files


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache: one quantisation, or all of a revision's safetensors or PyTorch files.
    `what` is empty for a repository without weights we read; `used` is when its files were last
    read, in seconds.
    """

    repo: str
    what: str
    commit: str
    refs: tuple[str, ...]
    size: int
    used: float
    files: tuple[Any, ...]  # the client's CachedFileInfo

    @property
    def name(self) -> str:
        whole = ("", SAFETENSORS.name, TORCH.single)
        return self.repo + (f":{self.what}" if self.what not in whole else "")


def find_cache_folder() -> Path:
    """Where the client keeps its files: HF_HUB_CACHE, or `hub` under HF_HOME."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def find_repo_folder(repo: str) -> Path:
    return find_cache_folder() / make_folder_name(repo)


def find_snapshot(name: HubName) -> Path | None:
    """The folder of a name's revision, as far as it was ever fetched."""
    folder = find_repo_folder(name.repo)
    revision = name.revision or "main"
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    found = folder / "snapshots" / commit
    return found if "/" not in commit and found.is_dir() else None


def list_models() -> list[CachedModel]:
    """Every model in the cache, by name."""
    found = [
        one
        for repo in _scan_cache().repos
        if repo.repo_type == "model"
        for revision in repo.revisions
        for one in _list_models(repo.repo_id, revision)
    ]
    return sorted(found, key=lambda one: (one.name.lower(), one.commit))


def select_models(name: HubName) -> list[CachedModel]:
    """The models a name means, for removing; `CheckpointError` with the nearest when none."""
    models = list_models()
    mine = [one for one in models if one.repo.lower() == name.repo.lower()]
    if name.revision:
        mine = [one for one in mine if name.revision in (one.commit, *one.refs)]
    if name.want:
        want = name.want.lower()
        mine = [one for one in mine if want in (one.what.lower(), *_list_names(one))]
    if not mine:
        hint = nearest(str(name), [one.name for one in models])
        raise CheckpointError(f"{name} is not in the cache{hint}; flyweight models lists what is")
    return mine


class Removal:
    """What removing a name would free, and doing it.  Files that a model which stays needs as well
    are kept.
    """

    def __init__(self, name: HubName) -> None:
        scan = _scan_cache()
        folder = find_repo_folder(name.repo)
        whole = not name.want and not name.revision and folder.is_dir()
        self.models = [] if whole and not _list_repos(scan, name.repo) else select_models(name)
        if name.want:
            self._plan = scan.delete_files(*(file for one in self.models for file in one.files))
        else:
            self._plan = scan.delete_revisions(*{one.commit for one in self.models})
        self._folder = folder if whole else None
        parts = folder.glob("blobs/*.incomplete") if whole else ()
        self.freed = self._plan.expected_freed_size + sum(part.stat().st_size for part in parts)

    def execute(self) -> None:
        self._plan.execute()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # downloads that were stopped


def count_unfinished_bytes() -> int:
    """Bytes of downloads that were stopped."""
    return int(_scan_cache().incomplete_size_on_disk)


def _scan_cache() -> Any:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound
    from huggingface_hub.utils import HFCacheInfo

    try:
        return scan_cache_dir()
    except CacheNotFound:  # nothing was ever fetched
        return HFCacheInfo(0, frozenset(), frozenset(), [])
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(str(error))
        raise CheckpointError(f"{find_cache_folder()}: {reason}") from None


def _list_repos(scan: Any, repo: str) -> list[Any]:
    return [one for one in scan.repos if one.repo_type == "model" and one.repo_id == repo]


def _list_models(repo: str, revision: Any) -> list[CachedModel]:
    """A revision's quantisations, or its safetensors, or all there is."""
    by_path = {str(f.file_path.relative_to(revision.snapshot_path)): f for f in revision.files}
    groups = group_gguf_files(by_path)
    parts = {find_label(stem) or Path(stem).name: files for stem, files in groups.items()}
    rest = [path for path in by_path if not path.endswith(".gguf")]
    if any(path.endswith(".safetensors") for path in rest):
        parts["safetensors"] = tuple(rest)
    elif any(path in (TORCH.single, TORCH.index) for path in rest) and not groups:
        parts[TORCH.single] = tuple(rest)
    elif by_path and not groups:
        parts[""] = tuple(by_path)
    return [
        CachedModel(
            repo,
            what,
            revision.commit_hash,
            tuple(sorted(revision.refs)),
            sum(by_path[file].size_on_disk for file in files),
            max((by_path[file].blob_last_accessed for file in files), default=0.0),
            tuple(by_path[file] for file in files),
        )
        for what, files in parts.items()
    ]


def _list_names(one: CachedModel) -> list[str]:
    return [file.file_name.lower() for file in one.files]
