"""Replicas with a directory of the prefix cache: each keeps its blocks in a folder of its own, and
the next that opens it finds them.
"""

import asyncio
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_engine_replica import read
from test_prefix_cache_dir import complete, read_metrics

from flyweight.kv.blockfolder import SECRET
from flyweight.kv.records import START
from flyweight.server import pipe
from flyweight.server.replicas.clocks import ClockedSubmit, measure_epoch
from flyweight.server.replicas.engine_replica import EngineReplica
from flyweight.server.replicas.reports import encode_setup
from flyweight.types import Request, SamplingParams
from http_server import WAIT, Running, running

SCRIPT = str(Path(__file__).with_name("local_replicas.py"))
BLOCKS, BYTES = "*.blocks", 49_152  # of a block of 32 tokens, without its head
TOKENS = 160  # of the prompt, in whole blocks
WORDS = (
    "--port", "0", "--seed", "7", "--threads", "2", "--max-model-len", "256",
    "--memory-limit", "2GiB", "--no-coalesce-requests", "--replicas", "2",
    "--routing", "round-robin",
)  # fmt: skip
EXTERNAL = "vllm:external_prefix_cache_hits_total"


@contextmanager
def serving(folder: Path, before: Callable[[], None] | None = None) -> Iterator[Running]:
    """Two replicas that get requests in turn.  A file that `before` limits is no bytecode."""
    words = [SCRIPT, *WORDS, "--prefix-cache-dir", str(folder)]
    with running(words, {"PYTHONDONTWRITEBYTECODE": "1"}, before) as server:
        yield server


def count_bytes(folder: Path) -> dict[str, int]:
    """Of the files of blocks, by the folders that they are in."""
    return {path.parent.name: path.stat().st_size for path in folder.rglob(BLOCKS)}


def save(server: Running, folder: Path) -> list[Any]:
    """Lets both replicas answer, and ends them once their blocks are saved."""
    answers = [complete(server) for _ in range(2)]
    least = START + TOKENS // 32 * BYTES
    server.until(lambda: sum(size > least for size in count_bytes(folder).values()) == 2)
    assert server.stop() == 0
    return answers


def test_replicas_that_start_again_find_their_blocks(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        first = save(server, tmp_path)
    assert first[0] == first[1] and first[0][2] == 0
    assert count_bytes(tmp_path).keys() == {"0", "1"}
    with serving(tmp_path) as server:
        again = [complete(server) for _ in range(2)]
        found = read_metrics(server)
        assert server.post("/reset_prefix_cache", {}).status == 200
        assert all(size < START for size in count_bytes(tmp_path).values()), "they are empty"
        after = [complete(server) for _ in range(2)]
        rows = server.get("/v1/engine/effective").json
    assert [one[:2] for one in again + after] == [one[:2] for one in first * 2]
    assert [one[2] for one in again + after] == [TOKENS, TOKENS, 0, 0]
    assert found[EXTERNAL] == 2 * TOKENS, "metrics are sums"
    assert f"{tmp_path}, 8 GiB for each replica" in str(rows)


def test_a_folder_that_another_process_holds_is_passed_over(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        first = save(server, tmp_path)
    (path,) = (tmp_path / "0").glob(BLOCKS)
    before = path.read_bytes()
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with serving(tmp_path) as server:
            again = [complete(server) for _ in range(2)]
    assert count_bytes(tmp_path).keys() == {"0", "1", "2"} and path.read_bytes() == before
    assert [one[:2] for one in again] == [one[:2] for one in first]
    assert sorted(one[2] for one in again) == [0, TOKENS], "one has a folder with blocks"


def test_a_full_disk_ends_writing_and_no_request(tmp_path: Path) -> None:
    limit = 150_000  # bytes of a file; those of the blocks are more

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with serving(tmp_path, set_limit) as server:
        first = [complete(server) for _ in range(2)]
        full = "no more blocks are written: File too large"
        server.until(lambda: sum(full in line for line in server.said) == 2)
        again = [complete(server) for _ in range(2)]
        assert [one[:2] for one in again] == [one[:2] for one in first]
        assert again[0][2] == TOKENS, "the pool has them"
        found = [line for line in server.said if full in line]
    for number in "01":
        assert sum(f"prefix cache {tmp_path / number}: " in line for line in found) == 1
    with serving(tmp_path) as server:
        again = [complete(server) for _ in range(2)]
    assert [one[:2] for one in again] == [one[:2] for one in first]
    assert all(0 < one[2] < TOKENS for one in again), "what was written is found"


def spoil_secret(folder: Path) -> Path:
    """Of the second replica's folder."""
    (folder / "1").mkdir(0o700)
    (folder / "1" / SECRET).write_bytes(b"short")
    return folder


def put_file(folder: Path) -> Path:
    (folder / "0").write_text("mine")
    return folder


def open_to_others(folder: Path) -> Path:
    folder.chmod(0o777)
    return folder


@pytest.mark.parametrize(("make", "words"), [
    (lambda folder: Path("/dev/null"), "/dev/null' cannot be used"),
    (put_file, "/0' cannot be used: File exists"),
    (open_to_others, "' may be changed by other users"),
    (spoil_secret, "/1' is no prefix cache: its file prefix-cache.secret does not have 32 bytes"),
])  # fmt: skip
def test_a_folder_that_cannot_be_used_is_one_line(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    ended = subprocess.run(
        [sys.executable, SCRIPT, *WORDS, "--prefix-cache-dir", str(make(tmp_path))],
        capture_output=True, text=True, timeout=WAIT,
    )  # fmt: skip
    (line,) = [one for one in ended.stderr.splitlines() if one.startswith("error: ")]
    assert ended.returncode == 2 and "prefix_cache_dir = " in line and words in line


# --- one replica after the other ---


def make_prompt(id: str) -> bytes:
    tokens = tuple(5 + i % 50 for i in range(100))
    request = Request(id, tokens, SamplingParams(temperature=0), max_tokens=3,
                      arrival=time.monotonic())  # fmt: skip
    return msgspec.msgpack.encode(ClockedSubmit(measure_epoch(), pipe.Submit.of(request)))


async def answer(replica: EngineReplica, id: str) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of the prompt were cached."""
    reports, ended = await read(replica, make_prompt(id))
    news = [one for report in reports for one in report.news]
    assert ended
    return [token for one in news for token in one.tokens], max(one.cached for one in news)


def test_a_new_replica_takes_the_next_number_while_the_old_one_runs(tmp_path: Path) -> None:
    """The one after them has the first folder, and its blocks, however its replica ended."""
    settings = {"threads": 1, "memory_limit": "300MiB", "prefix_cache_dir": str(tmp_path)}
    setup = encode_setup(1, pipe.EngineSetup(settings, 0.2))

    async def wait_until_saved(number: str) -> None:
        end = time.monotonic() + WAIT
        while count_bytes(tmp_path)[number] <= START + 3 * BYTES:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)

    async def main() -> None:
        old, new, last = (EngineReplica(setup) for _ in range(3))
        await old.start()
        first, cached = await answer(old, "a")
        await wait_until_saved("0")
        await new.start()
        assert cached == 0 and await answer(new, "b") == (first, 0)
        assert count_bytes(tmp_path).keys() == {"0", "1"}
        process = old.host._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT)
        await last.start()
        assert await answer(last, "c") == (first, 96)
        assert count_bytes(tmp_path).keys() == {"0", "1"}
        for one in (old, new, last):
            await one.close()

    asyncio.run(main())
