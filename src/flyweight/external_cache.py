"""Makes the external prefix cache that settings request: its directory, fingerprint and memory, and
the peers that share it.

Invariant: what cannot be used is refused before a tensor is read.  Two engines have the same
fingerprint only if they compute the same K/V, bit for bit, from the same tokens, and have the same
tokenizer and chat template.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

from flyweight.config import Settings
from flyweight.describe import ModelDescription
from flyweight.engine.external import ExternalCache
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.peer_blocks import PeerBlocks
from flyweight.engine.prefix import KeyBase
from flyweight.errors import ConfigError
from flyweight.kv.blockbytes import BlockBytes
from flyweight.kv.blockfolder import BlockFolder
from flyweight.kv.blocks import DIGEST, BlockPool
from flyweight.kv.peers.client import PeerClient
from flyweight.kv.peers.log import PeerLog
from flyweight.kv.peers.messages import BlockKind
from flyweight.kv.peers.secret import SharedSecret, read_secret
from flyweight.kv.peers.server import BlockServer
from flyweight.kv.peers.worker import PeerWorker
from flyweight.kv.records import OwnedFile, RecordFile
from flyweight.kv.store import BlockStore
from flyweight.models.decoder import make_ropes
from flyweight.ops.base import Ops
from flyweight.plan.memory import GIB, Sizing
from flyweight.resources import EngineResources
from flyweight.validation.peers import parse_listen, parse_peers
from flyweight.weights.adapter import CONFIG, Adapter

NOT_TEXT = (".safetensors", ".bin", ".pt", ".pth", ".gguf")  # weights, hashed by the checkpoint
Parts = Iterable[object]


class ExternalCacheSource:
    """The directory of an engine, opened; `make_fingerprint` is called where there is one, `note`
    with where peers are served.  A `replica` has a numbered folder of the directory.  Raises
    `ConfigError`.
    """

    def __init__(
        self,
        settings: Settings,
        make_fingerprint: Callable[[], bytes],
        note: Callable[[str], None] = lambda line: None,
        resources: EngineResources | None = None,
    ) -> None:
        self.settings = settings
        self.folder: BlockFolder | None = None
        self.server: BlockServer | None = None
        self.fingerprint, self._file = bytes(DIGEST), OwnedFile(-1)
        self._shared, self._log = _read_shared(settings), PeerLog()
        if settings.prefix_cache_dir is not None:
            path = Path(settings.prefix_cache_dir).expanduser()
            replica = resources is not None and resources.replica
            self._open_folder(path, int(settings.prefix_cache_gb * GIB), make_fingerprint, replica)
        listen = parse_listen(settings.prefix_cache_listen)
        if listen is not None and self._shared is not None:
            rate = settings.prefix_cache_peer_rate
            self.server = BlockServer(listen, self._shared.peers, rate, self._log)
            note(f"peers may fetch blocks of the prefix cache at {self.server.address}")

    def _open_folder(
        self, path: Path, limit: int, make_fingerprint: Callable[[], bytes], replica: bool
    ) -> None:
        if replica:
            self.fingerprint = make_fingerprint()
            self.folder, self._file = BlockFolder.open_numbered(path, limit, self.fingerprint)
            return
        self.folder = BlockFolder(path, limit)
        self.fingerprint = make_fingerprint()
        self._file = self.folder.open_file(self.fingerprint)

    @property
    def secret(self) -> bytes | None:
        """The secret of keys: that of the peers, else the directory's; None where nothing is
        kept.
        """
        if self._shared is not None:
            return self._shared.blocks
        return self.folder.secret if self.folder is not None else None

    def make_keys(self, model: str, adapters: Sequence[Adapter]) -> KeyBase:
        """What the keys of blocks begin with; `model` names the model and the type of its K/V."""
        if self.secret is None:
            return KeyBase(model)
        named = zip(self.settings.adapters, adapters, strict=True)
        shared = self._shared is not None
        known = {name: make_adapter_fingerprint(adapter, shared) for name, adapter in named}
        return KeyBase(f"{model} {self.fingerprint.hex()}", self.secret, known)

    def make(self, pool: BlockPool, kv: BlockBytes, metrics: EngineMetrics) -> ExternalCache | None:
        """The cache of a pool; None where none is requested."""
        disk = self._open_disk(kv.size)
        swap = self._open_swap(kv.size) if self.settings.swap_space else None
        if disk is None and swap is None:
            return None
        kind = BlockKind(self.fingerprint, kv.size)
        peers = self._make_peers(kind, pool.block_size, metrics)
        if self.server is not None and disk is not None:
            self.server.start(disk, kind)
        return ExternalCache(pool, kv, metrics, disk, swap, peers=peers, server=self.server)

    def _make_peers(
        self, kind: BlockKind, block_size: int, metrics: EngineMetrics
    ) -> PeerBlocks | None:
        addresses = parse_peers(self.settings.prefix_cache_peers)
        if not addresses or self._shared is None:
            return None
        clients = [PeerClient(address, self._shared.peers, kind) for address in addresses]
        workers = [PeerWorker(client, self._log) for client in clients]
        return PeerBlocks(workers, (block_size, kind.size), metrics)

    def _open_disk(self, size: int) -> BlockStore | None:
        if self.folder is None:
            return None
        file = RecordFile(self._file, size, self.fingerprint)
        _check_room("prefix_cache_gb", self.settings.prefix_cache_gb, file)
        name = f"prefix cache {self.folder.path}"
        try:
            return BlockStore(file, self.folder.allow, name)
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror or error}",
                "prefix_cache_dir",
                value=str(self.folder.path),
                hint="choose another directory",
            ) from None

    def _open_swap(self, size: int) -> BlockStore:
        file = RecordFile(OwnedFile(os.memfd_create("flyweight-swap")), size, self.fingerprint)
        _check_room("swap_space", self.settings.swap_space, file)
        room = int(self.settings.swap_space * GIB)
        return BlockStore(file, lambda wanted: wanted <= room, "swap space")


def make_fingerprint(
    found: ModelDescription, ops: Ops, settings: Settings, sizing: Sizing
) -> bytes:
    """What K/V in blocks depends on, apart from tokens and adapters.  Peers have copies of a model,
    so all bytes of the weights are read in place of the times of their change.
    """
    checkpoint = found.checkpoint
    shared = settings.prefix_cache_secret_file is not None
    exact = checkpoint.compute_digests() if shared else checkpoint.stamps
    weights = checkpoint.fingerprint, exact, checkpoint.quantisation
    shapes = repr(found.spec), repr(found.plan.slots), sizing.kv_dtype, sizing.block_size
    ropes = make_ropes(found.spec, sizing.max_model_len)  # some depend on the longest context
    turns = [part for frequencies, factor in ropes for part in (frequencies.tobytes(), factor)]
    device = getattr(ops, "isa", ""), ops.activations, settings.backend, settings.deterministic
    code = _read_tokenizer(found), read_code(settings.backend)
    return _hash((*weights, *shapes, *turns, *device, *code))


def make_adapter_fingerprint(adapter: Adapter, shared: bool = False) -> str:
    """Of an adapter's weights and its config; the same for copies of it where it is `shared`."""
    file = adapter.file
    config = (adapter.path / CONFIG).read_bytes()
    exact = file.file.compute_whole_digest() if shared else file.file.stamp
    return _hash((file.file.compute_digest(file.header), exact, config)).hex()


def _read_shared(settings: Settings) -> SharedSecret | None:
    file = settings.prefix_cache_secret_file
    return None if file is None else read_secret(Path(file).expanduser())


def _read_tokenizer(found: ModelDescription) -> bytes:
    """A hash of the tokenizer's and the template's files; those of a GGUF file are in its hash."""
    source = found.checkpoint.tokenizer_source
    if not isinstance(source, Path):
        return b""
    files = sorted(p for p in source.iterdir() if p.is_file() and p.suffix not in NOT_TEXT)
    return _hash(part for path in files for part in (path.name, path.read_bytes()))


def read_code(backend: str) -> bytes:
    """A hash of the code that computes: other kernels may round otherwise."""
    here = Path(__file__).parent
    natives = sorted(here.glob("_native*.so"))
    sources = sorted(p for part in ("models", "ops") for p in (here / part).rglob("*.py"))
    files = [path.read_bytes() for path in (*natives, *sources)]
    libraries = {"cuda": ("torch", "triton"), "reference": ("numpy",)}.get(backend, ())
    return _hash((*files, *(version(name) for name in libraries)))


def _hash(parts: Parts) -> bytes:
    found = blake2b(digest_size=DIGEST)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        found.update(len(data).to_bytes(8, "little") + data)
    return found.digest()


def _check_room(name: str, room: float, file: RecordFile) -> None:
    """Refuses a size that holds no block."""
    least = file.count_bytes(1)
    if room * GIB < least:
        file.file.close()
        near = -(-least * 10_000 // GIB) / 10_000
        raise ConfigError(
            f"GiB hold no block of {least} bytes", name, value=room, hint=f"nearest valid: {near:g}"
        )
