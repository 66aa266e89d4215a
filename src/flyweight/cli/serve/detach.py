"""`flyweight serve --detach`: the server in a process of its own, which outlives the terminal.

Invariant: returns once it takes requests, or with what it said when it could not start; Ctrl-C
before that ends it too.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flyweight.errors import ConfigError
from flyweight.server.lifecycle import running
from flyweight.server.lifecycle.running import ServerRecord
from flyweight.server.observability.log import open_locked
from flyweight.server.settings import LOOPBACK

POLL = 0.02
KEPT = 20  # logs of earlier servers
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def detach(words: Sequence[str], log_file: str, as_json: bool) -> int:
    """Starts `flyweight serve` with these words; its exit code where it does not come up."""
    path = Path(log_file).expanduser() if log_file else make_log()
    os.close(open_locked(path))  # its own refusal would be written there
    end = words.index("--") if "--" in words else len(words)
    own = [*words[:end], f"--log-file={path}", "--no-detach", *words[end:]]  # the last one counts
    command = [sys.executable, "-m", "flyweight.cli.main", "serve", *own]
    with open(path, "ab") as log:
        begin = log.tell()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        record = wait_until_ready(child, path, begin)
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise
    if record is None:
        return child.returncode or 1
    started = {"url": record.url, "pid": record.pid, "log": str(path)}
    if as_json:
        print(json.dumps(started))
    else:
        print(f"{record.url} pid {record.pid}, log {path}")
        which = f" --port {record.port}" if record.port else ""
        print(f"flyweight stop{which} ends it")
    return 0


def make_log() -> Path:
    """A new file, for this user alone."""
    place = running.get_folder()
    if place is None:
        raise ConfigError("--detach keeps a log in the cache folder; set FLYWEIGHT_CACHE")
    for old in sorted(place.glob("serve-*.log"))[:-KEPT]:
        for file in (old, old.with_name(f"{old.name}.1")):
            file.unlink(missing_ok=True)
    path = place / time.strftime(f"serve-%Y%m%d-%H%M%S-{os.getpid()}.log")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(0o600)
    except OSError as error:
        raise ConfigError(f"--detach: the log {path}: {error.strerror}") from None
    return path


def wait_until_ready(
    child: "subprocess.Popen[bytes]", path: Path, begin: int
) -> ServerRecord | None:
    """The server once it is ready; None where it has ended.  Shows what it says meanwhile, which
    stands in its log from `begin` on.
    """
    with open(path, "rb") as log:
        log.seek(begin)
        while True:
            ended = child.poll() is not None
            sys.stderr.write(log.read().decode("utf-8", "replace"))
            sys.stderr.flush()
            if ended:
                return None
            for record in running.list_running():
                if record.pid == child.pid and is_ready(record):
                    return record
            time.sleep(POLL)


def is_ready(record: ServerRecord) -> bool:
    """Whether a server takes requests; of one on a Unix socket or with TLS its record says so."""
    if not record.url.startswith("http:"):
        return True
    host = record.host if record.host in LOOPBACK else EVERYWHERE.get(record.host, record.host)
    line = http.client.HTTPConnection(host, record.port, timeout=5)
    try:
        line.request("GET", "/ready", headers={"host": f"localhost:{record.port}"})
        return line.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        line.close()
