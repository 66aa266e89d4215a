"""A log in a file: how large it gets, who may read it, and who writes it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flyweight.errors import ConfigError
from flyweight.server.lifecycle.running import list_running
from flyweight.server.observability.log import LogFile, ServerLog, open_locked
from http_server import WAIT, Running, started

MOST = 1000


def test_it_is_bounded_and_one_older_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, MOST)
    log = ServerLog(to=file)  # type: ignore[arg-type]
    for i in range(200):
        log.event("x", i=i)
    log.close()
    older = tmp_path / "a.log.1"
    assert sorted(tmp_path.iterdir()) == [path, older]
    assert {p.stat().st_mode & 0o777 for p in (path, older)} == {0o600}
    assert all(MOST - 60 < p.stat().st_size <= MOST for p in (older,)) and path.stat().st_size
    kept = re.findall(r"i=(\d+)", older.read_text() + path.read_text())
    assert [int(i) for i in kept] == list(range(200 - len(kept), 200)) and len(kept) > 25


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for text in ("one\n", "two\n"):
        file = LogFile(path, MOST)
        file.write(text)
        file.close()
    assert path.read_text() == "one\ntwo\n"


def test_there_is_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path, MOST)
    for _ in range(2):
        with pytest.raises(ConfigError, match="written by another server; give each"):
            open_locked(path)
        file.write("x" * MOST)  # and after it has turned over
    file.close()
    os.close(open_locked(path))


@pytest.mark.parametrize("kind", ["folder", "missing", "pipe", "device"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "missing":
        path = tmp_path / "none" / "x"
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path(os.devnull)
    with pytest.raises(ConfigError, match=f"--log-file {path}"):
        open_locked(path)


def test_where_it_cannot_turn_over_the_bound_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    (tmp_path / "a.log.1").mkdir()
    file = LogFile(path, MOST)
    for _ in range(300):
        file.write("a line\n")
    assert path.stat().st_size <= MOST
    file.close()


def test_stderr_in_the_same_file_follows(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    code = (
        "import sys; from pathlib import Path;"
        "from flyweight.server.observability.log import LogFile;"
        f"f = LogFile(Path({str(path)!r}), {MOST}); f.write('x' * {MOST}); f.write('new\\n');"
        "print('said', file=sys.stderr)"
    )
    with path.open("ab") as stderr:
        subprocess.run([sys.executable, "-c", code], stderr=stderr, check=True, timeout=WAIT)
    assert path.read_text() == "new\nsaid\n"


def test_a_servers_lines_go_there(refusal: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    with started("--log-file", str(path)) as server:
        server.get("/version")
        server.until(lambda: "path=/version" in path.read_text())
        assert not [line for line in server.said if "path=/version" in line]
        (row,) = [
            row for row in server.get("/v1/engine/effective").json["features"]
            if row["feature"] == "--log-file"
        ]  # fmt: skip
        assert row["effective"] == "s.log" and str(tmp_path) not in str(row)
        for more in ([], ["--detach"]):
            said = refusal("--port", "0", "--log-file", str(path), *more)
            assert "written by another server" in said
        assert "another server" not in path.read_text()


def test_a_detached_servers_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path))
    command = [sys.executable, "-m", "flyweight.cli.main"]
    done = subprocess.run(
        [*command, "serve", "--port=0", "--detach", "--log-file-bytes=64KiB"],
        capture_output=True, text=True, timeout=WAIT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert done.returncode == 0, done.stderr
        (record,) = list_running()
        log, older = Path(record.log), Path(record.log + ".1")
        server = Running(None, record.port)  # type: ignore[arg-type]
        for _ in range(1500):
            server.get("/v1/" + "a" * 190)
            if older.exists():
                break
        assert older.stat().st_size <= 64 << 10 and older.stat().st_mode & 0o077 == 0
        assert record.url in older.read_text() and record.url not in log.read_text()
    finally:
        subprocess.run([*command, "stop", "--all"], timeout=WAIT, check=False)
