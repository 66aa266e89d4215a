"""Rows answered by replicas on Ray: shares of rows, results that come twice or never, real runs."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec
import pytest

from batch_texts import PROMPTS, ROWS, generate_texts, read_texts, write_rows, write_table
from flyweight import __version__
from flyweight.batch import replicas
from flyweight.batch.files import open_rows
from flyweight.batch.job import run_batch
from flyweight.batch.replicas import (
    MAX_SHARE,
    RayReplica,
    RayRunner,
    RowShare,
    describe_driver,
    divide_machine,
    make_shares,
)
from flyweight.batch.rows import RowAnswer, RowIndex
from flyweight.cli.main import main
from flyweight.describe import ASSETS
from flyweight.errors import ConfigError
from flyweight.server.settings import ServerSettings
from process_tree import list_descendants

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing")
needs_arrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is missing"
)


def make_index(folder: Path, rows: int, ending: str = "jsonl") -> RowIndex:
    given, file = [{"prompt": str(i)} for i in range(1, rows + 1)], folder / f"in.{ending}"
    if ending == "jsonl":
        write_rows(file, given)
    else:
        write_table(file, given, size=700)
    return RowIndex(open_rows(file))


def read_shares(items: Any) -> list[list[int]]:
    """The rows of shares, which are read each from a file that is opened for it, and as a replica
    reads them.
    """
    shares = [msgspec.msgpack.decode(item, type=RowShare) for item in items]
    found = [list(one.digests) for one in shares]
    for open_file in (open_rows, cache(open_rows)):
        assert [[row.number for row in one.read(open_file)] for one in shares] == found
    return found


@pytest.mark.parametrize("ending", ["jsonl", pytest.param("parquet", marks=needs_arrow)])
def test_shares_are_the_rows_without_an_answer(tmp_path: Path, ending: str) -> None:
    index = make_index(tmp_path, 20, ending)
    for number in (1, 5, 6, 20):
        index.finish(number)
    found = read_shares(make_shares(index, 2))
    assert [len(one) for one in found] == [2] * 8
    assert list(chain(*found)) == [i for i in range(1, 21) if i not in (1, 5, 6, 20)]
    many = read_shares(make_shares(make_index(tmp_path, 5000, ending), 1))
    assert max(map(len, many)) == MAX_SHARE and list(chain(*many)) == [*range(1, 5001)]


@pytest.mark.parametrize(
    ("copy", "answered", "refused"),
    [
        ('{"prompt": "1"}\n{"prompt": "x"}\n{"prompt": "3"}\n', [1], 2),
        ('{"prompt": "1"}\n\n{"prompt": "2"}\n{"prompt": "3"}\n', [1], 3),
        ('{"prompt": "1"}\n{"prompt": "2"}\n', [1, 2], 3),
        ("", [], 1),
    ],
)
def test_a_copy_of_the_input_that_differs_is_refused(
    tmp_path: Path, copy: str, answered: list[int], refused: int
) -> None:
    index = make_index(tmp_path, 12)
    item = make_shares(index, 1)[0]  # rows 1 to 3
    index.file.path.write_text(copy)
    found: list[int] = []
    with pytest.raises(ConfigError) as caught:
        for row in msgspec.msgpack.decode(item, type=RowShare).read():
            found.append(row.number)
    assert found == answered
    words = f"row {refused} of the input {str(index.file.path)!r} is missing on {gethostname()} or"
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


def test_replicas_share_a_machine() -> None:
    whole = divide_machine({"memory_limit": "6GiB"}, 1)
    part = divide_machine({"memory_limit": "6GiB"}, 3)
    assert (whole["memory_limit"], part["memory_limit"]) == (6 << 30, 2 << 30)
    assert part["threads"] == max(1, whole["threads"] // 3)
    assert divide_machine({"threads": 2}, 8)["threads"] == 2
    assert divide_machine({"kv_cache_memory_bytes": 3 << 30}, 3)["kv_cache_memory_bytes"] == 1 << 30


def stand_in(monkeypatch: pytest.MonkeyPatch, lose: int, twice: bool, fatal: int = 0) -> list[int]:
    """Ray's place is taken by a loop, which loses every `lose`-th row of its first round, and in
    all rounds the shares with the row `fatal`.
    """
    rounds: list[int] = []

    def map_in_actors(items: Any, make: Any, pool: Any) -> Iterator[bytes]:
        rounds.append(len(items))
        for item in items:
            share = msgspec.msgpack.decode(item, type=RowShare)
            for row in () if fatal in share.digests else share.read():
                if lose and row.number % lose == 0 and len(rounds) == 1:
                    continue
                line = json.dumps({"id": row.id, "error": None}).encode() + b"\n"
                for _ in range(1 + twice):
                    yield msgspec.msgpack.encode(RowAnswer(row.number, line, False, 3, 4))

    module = types.ModuleType("flyweight.parallel.ray_data")
    module.ActorPool = lambda *given: given  # type: ignore[attr-defined]
    module.map_in_actors = map_in_actors  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return rounds


def test_rows_that_come_twice_or_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, out = make_index(tmp_path, 30).file.path, tmp_path / "out.jsonl"
    rounds = stand_in(monkeypatch, lose=7, twice=True)
    summary = run_batch(given, out, RayRunner({}, 2))
    assert len(rounds) == 2 and summary.answered == 30 and summary.completion_tokens == 120
    numbers = [int(json.loads(line)["id"].split("_")[2]) for line in out.read_text().splitlines()]
    assert sorted(numbers) == list(range(1, 31)) and numbers[-4:] == [7, 14, 21, 28]
    out.unlink()
    assert len(stand_in(monkeypatch, lose=1, twice=False)) == 0
    assert run_batch(given, out, RayRunner({}, 2)).errors == 0


def test_a_row_that_ends_its_process_gets_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out = make_index(tmp_path, 3000).file.path, tmp_path / "out.jsonl"
    rounds = stand_in(monkeypatch, lose=0, twice=False, fatal=2500)
    summary = run_batch(given, out, RayRunner({}, 2))
    assert (summary.answered, summary.errors) == (3000, 1) and len(rounds) < 8
    last = json.loads(out.read_text().splitlines()[-1])
    assert last["custom_id"] == "row-2500"
    assert last["error"]["message"] == "the replica ended each time that it computed this row"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("version", "0.0.1", f"has flyweight {__version__}, and not 0.0.1; have the same"),
        ("code", "0ther", "has a build "),
        ("adapter_weights", ["abc"], "has adapters with fingerprints none, and not abc"),
        ("fingerprint", "fedcba", "has a model with fingerprint "),
        ("tokenizer", "fedcba", "has a tokenizer or chat template with fingerprint "),
    ],
)
def test_a_host_that_differs_is_refused(name: str, value: Any, words: str) -> None:
    settings = {"model": "stories", "threads": 1, "max_model_len": 64}
    same, driver = describe_driver(settings)
    assert same == settings
    with pytest.raises(ConfigError, match="a replica on ") as refused:
        RayReplica(settings, ServerSettings(), {**driver, name: value}, 1)
    assert words in str(refused.value)
    if name == "tokenizer":
        RayReplica(settings, ServerSettings(), driver, 1)


def test_replicas_of_a_cluster_get_a_commit_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--tiny--one" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    shutil.copy(ASSETS / "stories.gguf", folder / "one-Q8_0.gguf")
    inside = describe_driver({})[1]
    monkeypatch.setattr(replicas, "find", lambda settings, tell: folder / "one-Q8_0.gguf")
    settings, facts = describe_driver({"model": "tiny/one"})
    assert settings == {"model": "tiny/one:one-Q8_0.gguf", "revision": "0" * 40}
    assert facts["fingerprint"] == inside["fingerprint"]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, near in ((0, 1), (5000, 4096)):
        with pytest.raises(ConfigError, match=f"replicas = {wrong} .* nearest valid: {near}"):
            RayRunner({}, wrong)
    monkeypatch.setitem(sys.modules, "flyweight.parallel.ray_data", None)
    index = make_index(tmp_path, 1)
    with pytest.raises(ConfigError, match="needs Ray; pip install"):
        next(RayRunner({}, 2).answer(index))


@needs_ray
@pytest.mark.long
def test_texts_are_those_of_generate(tmp_path: Path) -> None:
    given, out = write_rows(tmp_path / "in.jsonl", [*ROWS, "no json"]), tmp_path / "out.jsonl"
    runner = RayRunner({"model": "stories", "threads": 1, "memory_limit": "2GiB"}, 2)
    summary = run_batch(given, out, runner)
    assert (summary.answered, summary.errors) == (len(ROWS) + 1, 1)
    assert read_texts(out) == generate_texts()
    assert run_batch(given, out, runner).answered == 0


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    """With Ray's processes, none of which can then end in an orderly way."""
    for pid in list_descendants(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@needs_ray
@needs_arrow
@pytest.mark.long
def test_a_job_in_parquet_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Each row is answered once, by replicas that were killed or by those that follow."""
    import pyarrow.parquet

    rows = [{**ROWS[i % len(ROWS)], "custom_id": str(i)} for i in range(1500)]
    given, out = write_table(tmp_path / "in.parquet", rows, size=1000), tmp_path / "out.parquet"
    journal = tmp_path / "out.parquet.partial.jsonl"
    command = [sys.executable, "-m", "flyweight", "batch", "stories", str(given), str(out)]
    options = ["--replicas", "2", "--threads", "1", "--memory-limit", "2GiB"]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (journal.exists() and journal.stat().st_size):
            time.sleep(0.01)
        assert process.poll() is None, "it has ended by itself"
        kill_all(process)
    done = journal.read_bytes().count(b"\n")
    assert 0 < done < len(rows) and not out.exists()
    runner = RayRunner({"model": "stories", "threads": 1, "memory_limit": "2GiB"}, 2)
    summary = run_batch(given, out, runner)
    assert (summary.done_before, summary.answered, summary.errors) == (done, len(rows) - done, 0)
    found, texts = pyarrow.parquet.read_table(out).to_pylist(), generate_texts()
    assert sorted(int(row["custom_id"]) for row in found) == [*range(len(rows))]
    for row in found:
        assert row["text"] == texts[PROMPTS[int(row["custom_id"]) % len(PROMPTS)]]


@needs_ray
@pytest.mark.long
def test_a_bad_model_or_cluster_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = str(write_rows(tmp_path / "in.jsonl", ROWS))
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"no model")
    for model, more, named in (
        (str(broken), [], "model.gguf"),
        ("stories", ["--ray-address", "127.0.0.1:1"], "ray_address = '127.0.0.1:1'"),
    ):
        words = ["batch", model, given, str(tmp_path / "out"), "--replicas", "1", *more]
        assert main(words) == 2
        errors = capfd.readouterr().err.splitlines()
        assert named in errors[-1] and errors[-1].startswith("error: "), errors
        assert not any("Traceback" in line for line in errors)
