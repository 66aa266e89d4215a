"""What says a model's shape, from the Hub and no more of it: config.json, or the headers of GGUF
files by HTTP ranges.

Invariant: nothing is put into the Hub's cache.  A GGUF file made here has the size of the real one
and its header; where the tensors would be it is a hole, which takes no room on the disk.
"""

from pathlib import Path, PurePosixPath

from flyweight import __version__
from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import parse_object, read_bytes, shown
from flyweight.weights.gguf import MAGIC, read_gguf
from flyweight.weights.hub.download import DownloadListener, RemoteFile, check_name
from flyweight.weights.hub.faults import make_offline_error, translate_errors
from flyweight.weights.hub.find import PATIENCE, HubListing, HubSearch, list_files
from flyweight.weights.hub.names import HubName, choose, choose_gguf, group_gguf_files

FIRST, MOST = 1 << 20, 64 << 20  # bytes of a header: fetched at first, and at most
MOST_CONFIG = 1 << 20


def fetch_header(name: HubName, search: HubSearch, folder: Path, tell: DownloadListener) -> Path:
    """`folder` with the model's config.json in it, or its first GGUF file there, without tensors.
    Raises `CheckpointError`.
    """
    from huggingface_hub import constants

    if search.offline or constants.HF_HUB_OFFLINE:
        raise make_offline_error(name)
    with translate_errors(name):
        listing = list_files(name, tell)
        choice = choose(name, listing.sizes, search.room)
        if "config.json" in choice.companions:
            try:
                _fetch_config(name, listing, folder, search)
                return folder
            except CheckpointError:
                if name.want or not group_gguf_files(listing.files):
                    raise
                choice = choose_gguf(name, listing.sizes, search.room)
        for file in choice.weights:
            _fetch_gguf(name, listing, listing.files[file], folder)
        return folder / PurePosixPath(choice.weights[0]).name


def _fetch_config(name: HubName, listing: HubListing, folder: Path, search: HubSearch) -> None:
    remote = listing.files["config.json"]
    text = _read_range(name, listing, remote, 0, min(remote.size, MOST_CONFIG))
    (folder / "config.json").write_bytes(text)
    search.accept(parse_object(read_bytes(folder / "config.json"), f"{name}: config.json"))


def _fetch_gguf(name: HubName, listing: HubListing, remote: RemoteFile, folder: Path) -> None:
    """Fetches more of a file until its header is whole."""
    check_name(name, remote.name)
    path = folder / PurePosixPath(remote.name).name
    have, wanted = 0, min(FIRST, remote.size)
    with open(path, "wb") as out:
        out.truncate(remote.size)
        while True:
            out.seek(have)
            out.write(_read_range(name, listing, remote, have, wanted))
            out.flush()
            have = wanted
            try:
                gguf = read_gguf(path)
                gguf.file.close()
                if gguf.data <= have:
                    return
            except CheckpointError as error:
                with open(path, "rb") as file:
                    foreign = file.read(len(MAGIC)) != MAGIC
                if foreign or have >= min(MOST, remote.size):
                    text = str(error).replace(str(path), shown(remote.name))
                    raise CheckpointError(f"{name}: {text}") from None
            wanted = min(2 * have, remote.size)


def _read_range(
    name: HubName, listing: HubListing, remote: RemoteFile, begin: int, end: int
) -> bytes:
    """Bytes [begin, end) of a file, also of a server that ignores ranges."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = build_hf_headers(library_name="flyweight", library_version=__version__)
    headers |= {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    url = hf_hub_url(name.repo, remote.name, revision=listing.commit)
    found = bytearray()
    with get_session().stream(
        "GET", url, headers=headers, timeout=PATIENCE, follow_redirects=True
    ) as response:
        hf_raise_for_status(response)
        skip = 0 if response.status_code == 206 else begin
        for part in response.iter_bytes():
            found += part
            if len(found) >= skip + end - begin:
                break
    if len(found) < skip + end - begin:
        raise CheckpointError(
            f"{name}: {shown(remote.name)} ended after {begin + len(found) - skip} bytes; try again"
        )
    return bytes(found[skip : skip + end - begin])
