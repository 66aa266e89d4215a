"""The server under a soak: `flyweight serve` with three models, its cache and log on a small disk.

Invariant: the small disk is a tmpfs of a mount namespace that ends with the server.  Where this
user may mount nothing, cache and log are in a plain folder, and the disk cannot be filled.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from convert import to_gguf
from http_server import SERVE, Running

MODELS = ("stories", "small", "large")
TENANTS = 3
DISK = "48m"  # of which the cache may have 20 MiB, and the log 8 MiB
LIMITS = (
    "--max-model-len", "512", "--max-num-seqs", "8", "--num-gpu-blocks-override", "192",
    "--prefix-cache-gb", "0.02", "--log-file-bytes", "4MiB", "--schema-compile-timeout", "60",
    "--queue-timeout", "90", "--request-timeout", "120",
)  # fmt: skip
MOUNT = f'mount -t tmpfs -o size={DISK},mode=0700 none "$0"'
READY = 180.0  # seconds


@dataclass(frozen=True, slots=True)
class SoakServer:
    """`disk` is the small disk as this process sees it; `has_disk`: it can be filled."""

    running: Running
    keys: tuple[str, ...]
    disk: Path
    has_disk: bool
    said: Path

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def find_engine(self) -> int | None:
        """The engine's process; None while there is none."""
        with suppress(ValueError, OSError):
            return self.running.worker
        return None

    def find_others(self) -> list[int]:
        """Processes that try schemas."""
        with suppress(OSError):
            own = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
            return [int(pid) for pid in own.split() if int(pid) != self.find_engine()]
        return []


def find_models(folder: Path) -> dict[str, str]:
    """The model inside, and two of the data folder, one of them converted.  Ends the script where
    that has none.
    """
    data = Path(os.environ.get("FLYWEIGHT_DATA", "/nonexistent"))
    small = data / "stories260k" / "stories260K-f32.gguf"
    if not small.exists():
        raise SystemExit("set FLYWEIGHT_DATA to a folder with stories260k and stories3m")
    large = folder / "stories3m.gguf"
    to_gguf(data / "stories3m" / "stories3M-q80.bin", data / "stories3m" / "tok4096.bin", large,
            kind="q8_0")  # fmt: skip
    return dict(zip(MODELS, ("stories", str(small), str(large)), strict=True))


def find_mounter(disk: Path) -> list[str]:
    """The words before a command that has a small disk; none where that cannot be mounted."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    for flags in (("-m",), ("-Urm",)):
        words = [unshare, *flags, "sh", "-c"]
        if subprocess.run([*words, MOUNT, str(disk)], capture_output=True).returncode == 0:
            return [*words, f'{MOUNT} && exec "$@"', str(disk)]
    return []


@contextmanager
def serving(models: dict[str, str], folder: Path) -> Iterator[SoakServer]:
    """A server that takes requests; it is killed if it has not ended by itself."""
    disk, said = folder / "disk", folder / "stderr.txt"
    disk.mkdir(mode=0o700)
    mounter = find_mounter(disk)
    keys = tuple(f"sk-{secrets.token_hex(8)}" for _ in range(TENANTS))
    port = find_free_port()
    words = [f"{name}={model}" for name, model in models.items()]
    words += ["--port", str(port), "--api-key", *keys, *LIMITS]
    words += ["--prefix-cache-dir", str(disk / "blocks"), "--log-file", str(disk / "log")]
    environment = {**os.environ, "FLYWEIGHT_CACHE": str(folder / "cache")}
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [*mounter, sys.executable, *SERVE, *words],
            stdin=subprocess.DEVNULL, stderr=errors, text=True, env=environment,
        )  # fmt: skip
    seen = Path(f"/proc/{process.pid}/root{disk}") if mounter else disk
    server = SoakServer(Running(process, port), keys, seen, bool(mounter), said)
    try:
        wait_until_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


def wait_until_ready(server: SoakServer) -> None:
    """Ends the script where the server does not start."""
    late = time.monotonic() + READY
    while server.running.process.poll() is None and time.monotonic() < late:
        with suppress(OSError):
            if server.running.get("/ready").status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"the server did not start:\n{server.said.read_text(errors='replace')}")


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def fill_disk(server: SoakServer) -> int:
    """Writes to the small disk until it has no room; bytes written."""
    written = 0
    with (server.disk / "fill").open("wb", buffering=0) as fill:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    written += fill.write(bytes(size)) or 0
    return written


def empty_disk(server: SoakServer) -> None:
    (server.disk / "fill").unlink()


def read_log_end(server: SoakServer, size: int = 4000) -> str:
    """The last lines that the server logged."""
    with suppress(OSError):
        return (server.disk / "log").read_bytes()[-size:].decode("utf-8", "replace")
    return ""
