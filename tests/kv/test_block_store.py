"""Blocks outside the pool: every block that is loaded has the bytes that were saved for its key."""

import errno
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import SIZE, key_of, load, opened, save

from flyweight.kv import records
from flyweight.kv.records import HEAD, START, USED_AT

HERE = Path(__file__).parent
STEP = st.tuples(
    st.sampled_from(("save", "load", "touch", "reopen", "change", "cut")), st.integers(0, 11)
)


@settings(deadline=None, max_examples=150)
@given(steps=st.lists(STEP, max_size=40), seed=st.integers(0, 999))
def test_any_history_gives_the_saved_bytes_or_a_miss(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], seed: int
) -> None:
    path, rng = tmp_path_factory.mktemp("store") / "blocks", random.Random(seed)
    most, sound, kept = rng.randint(1, 6), True, set[int]()
    while True:
        with opened(path, most) as store:
            for number in kept:
                assert load(store, number) or not sound
            kept = {number for number in range(12) if load(store, number)}
            again = ""
            while steps and not again:
                action, number = steps.pop(0)
                if action == "save":
                    store.advance()
                    assert save(store, number) and load(store, number)
                elif action == "load":
                    load(store, number)
                elif action == "touch":
                    store.touch([key_of(number)])
                else:
                    again = action
                assert len(store.entries) <= most
            kept = {number for number in range(12) if load(store, number)}
        sound = again not in ("change", "cut")
        if again == "change":
            change(path, rng.randrange(max(1, path.stat().st_size)))
        elif again == "cut":
            os.truncate(path, rng.randrange(path.stat().st_size + 1))
        if not again:
            return


def change(path: Path, offset: int) -> None:
    """Flips a byte of a file."""
    data = bytearray(path.read_bytes())
    if offset < len(data):
        data[offset] ^= 0x55
        path.write_bytes(data)


def test_a_changed_byte_makes_at_most_one_block_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with opened(path) as store:
        assert all(save(store, number) for number in range(3))
    whole, record = path.read_bytes(), HEAD + 128  # 100 bytes, in units of 64
    assert len(whole) == START + 2 * record + HEAD + SIZE
    misses = 0
    for offset in range(START, len(whole)):
        path.write_bytes(whole)
        change(path, offset)
        with opened(path) as store:
            found = [load(store, number) for number in range(3)]
            hurt = (offset - START) // record
            assert all(ok for number, ok in enumerate(found) if number != hurt)
            misses += not found[hurt]
            assert save(store, hurt) and load(store, hurt)
    assert misses >= 3 * (SIZE + 76), "each byte of data and of what names it is covered"


def test_bytes_in_use_are_those_of_stored_blocks(tmp_path: Path) -> None:
    with opened(tmp_path / "blocks", most=2) as store:
        used = [store.nbytes]
        for number in (0, 0, 1, 2):  # the third takes the place of another
            assert save(store, number)
            used.append(store.nbytes)
        store.clear()
        assert used == [0, 256, 256, 512, 512] and store.nbytes == 0


def test_a_damaged_block_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "blocks"
    with opened(path) as store:
        assert all(save(store, number) for number in range(3))
    for number in range(2):
        change(path, START + number * 256 + HEAD)
    with opened(path) as store, caplog.at_level(logging.WARNING, "flyweight"):
        assert [load(store, number) for number in range(3)] == [False, False, True]
    assert caplog.messages == ["a test: a damaged block was left out"]


def test_a_file_of_any_length_is_read(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with opened(path) as store:
        assert all(save(store, number) for number in range(3))
    whole = path.read_bytes()
    for length in (*range(80), *range(START - 2, len(whole))):
        path.write_bytes(whole[:length])
        with opened(path) as store:
            there = [START + number * 256 + HEAD + SIZE <= length for number in range(3)]
            assert [load(store, number) for number in range(3)] == there
            assert save(store, 7) and load(store, 7)


@pytest.mark.parametrize("fingerprint", [bytes(32), b"x" * 32])
def test_a_file_of_another_model_or_format_is_started_anew(
    tmp_path: Path, fingerprint: bytes
) -> None:
    path = tmp_path / "blocks"
    with opened(path) as store:
        assert save(store, 1)
    with opened(path, fingerprint=fingerprint) as store:
        assert not load(store, 1) and save(store, 2) and load(store, 2)
    with opened(path, size=SIZE + 1, fingerprint=fingerprint) as store:
        assert not load(store, 2) and save(store, 2) and load(store, 2)
    path.write_bytes(b"a text of somebody else\n" * 999)
    with opened(path) as store:
        assert not store.entries and save(store, 2) and load(store, 2)


def test_a_crash_at_any_byte_leaves_the_other_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that reach the disk are cut at every place of a save in the place of another."""
    path = tmp_path / "blocks"
    with opened(path, 3) as store:
        for number in range(3):
            store.advance()
            assert save(store, number)
        store.advance()
        before, written = path.read_bytes(), list[tuple[bytes, int]]()
        real = records.write_all
        monkeypatch.setattr(
            records,
            "write_all",
            lambda fd, data, at: (written.append((bytes(data), at)), real(fd, data, at)),
        )
        assert save(store, 3)
    monkeypatch.undo()
    total, after = sum(len(data) for data, _ in written), path.read_bytes()
    assert total == SIZE + HEAD and covered(after) != covered(before)
    for length in range(total + 1):
        image, left = bytearray(before), length
        for data, at in written:
            image[at : at + min(left, len(data))] = data[:left]
            left = max(0, left - len(data))
        path.write_bytes(image)
        with opened(path, 3) as store:
            assert load(store, 1) and load(store, 2)
            assert load(store, 0) == (covered(image) == covered(before))
            assert load(store, 3) == (covered(image) == covered(after))
            assert save(store, 5) and load(store, 5)


def covered(image: bytes | bytearray) -> bytes:
    """What checksums cover of the first record."""
    return bytes(image[START : START + USED_AT] + image[START + HEAD : START + HEAD + SIZE])


def test_a_killed_writer_leaves_whole_blocks(tmp_path: Path) -> None:
    path, env = tmp_path / "blocks", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for kept in (1, 45, 130):
        command = [sys.executable, str(HERE / "write_until_killed.py"), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as writer:
            assert writer.stdout is not None
            for _ in range(kept):
                assert writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        with opened(path, most=40, size=100_000) as store:
            there = sum(load(store, number) for number in range(200))
            assert min(kept, 40) - 1 <= there <= 40, "one block was being written"
            assert save(store, 500) and load(store, 500)


def fail(code: int, after: int) -> Callable[..., int]:
    """A `pwrite` of a disk that is full after some bytes."""
    real, left = os.pwrite, [after]

    def write(descriptor: int, data: Any, offset: int) -> int:
        if not left[0]:
            raise OSError(code, os.strerror(code))
        done = real(descriptor, bytes(data)[: left[0]], offset)
        left[0] -= done
        return done

    return write


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("after", [0, 40, 150, 300])
def test_a_full_disk_ends_writing_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    code: int, after: int,
) -> None:  # fmt: skip
    path = tmp_path / "blocks"
    with opened(path) as store, caplog.at_level(logging.WARNING, "flyweight"):
        assert save(store, 0)
        monkeypatch.setattr(os, "pwrite", fail(code, after))
        results = [save(store, number) for number in range(1, 4)]
        assert results == [after >= 228, False, False]
        store.advance()
        store.touch(store.entries)
        assert load(store, 0) and load(store, 1) == results[0]
    assert caplog.messages == [f"a test: no more blocks are written: {os.strerror(code)}"]
    monkeypatch.undo()
    with opened(path) as store:
        assert load(store, 0) and not load(store, 2)


def test_a_directory_that_is_gone_ends_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def allow(size: int) -> bool:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    with opened(tmp_path / "blocks") as store, caplog.at_level(logging.WARNING, "flyweight"):
        assert save(store, 0)
        monkeypatch.setattr(store, "allow", allow)
        assert not save(store, 1) and not save(store, 2) and load(store, 0)
    assert len(caplog.messages) == 1 and "no more blocks are written" in caplog.messages[0]


def test_a_disk_that_cannot_be_read_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(tmp_path / "blocks") as store:
        assert save(store, 0) and save(store, 1)
        monkeypatch.setattr(os, "preadv", read)
        assert not load(store, 0)
        monkeypatch.undo()
        assert load(store, 1)


def test_the_block_used_longest_ago_goes_first(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with opened(path, 3) as store:
        for number in range(3):
            store.advance()
            assert save(store, number)
        store.advance()
        store.touch([key for key, entry in store.entries.items() if entry.place == 0])
        assert save(store, 3)
        assert [load(store, number) for number in range(4)] == [True, False, True, True]
    with opened(path, 3) as store:  # the order outlives the process
        store.advance()
        assert save(store, 4)
        assert [load(store, number) for number in range(5)] == [True, False, False, True, True]


def test_a_block_goes_before_its_parent(tmp_path: Path) -> None:
    rng = random.Random(1)
    for case in range(20):
        with opened(tmp_path / str(case), 10) as store:
            for number in range(60):
                if rng.random() < 0.4:
                    store.advance()
                parent = rng.choice([-1, *range(max(0, number - 9), number)])
                depth = 0
                held = [n for n in range(number) if load(store, n)]
                if parent in held:
                    depth = rng.randrange(1, 4) + number
                else:
                    parent = -1
                assert save(store, number, parent, depth)
                for key, entry in store.entries.items():
                    above = store.entries.get(entry.parent)
                    assert above is None or above.used >= entry.used, key
            assert len(store.entries) == 10
            assert os.fstat(store.file.file.number).st_size <= store.file.count_bytes(10)


def test_a_smaller_limit_cuts_the_file(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with opened(path, 8) as store:
        assert all(save(store, number) for number in range(8))
    with opened(path, 3) as store:
        assert len(store.entries) == 3 and all(load(store, number) for number in range(3))
        assert path.stat().st_size <= store.file.count_bytes(3)
    with opened(path, 0) as store:
        assert not save(store, 9) and not store.entries


def test_cleared_blocks_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with opened(path) as store:
        assert save(store, 0)
        store.clear()
        assert not load(store, 0) and save(store, 1) and load(store, 1)
    with opened(path) as store:
        assert not load(store, 0) and load(store, 1)


def test_a_closed_store_has_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "blocks") as store:
        assert save(store, 0)
        store.close()
        assert not load(store, 0) and not save(store, 1)
