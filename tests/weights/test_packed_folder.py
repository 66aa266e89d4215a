"""The folder of kept weights, where it is, and the checksums in its files."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight import _native
from flyweight.config import PackedCacheSettings
from flyweight.errors import ConfigError
from flyweight.weights.packed import folder as folders
from flyweight.weights.packed.folder import CacheFolder
from flyweight.weights.packed.shape import CompiledShape, read_shape, write_shape

SHAPE = CompiledShape.__slots__


def test_those_unused_for_longest_give_way(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 100)
    for age, name in enumerate("abcd"):
        file = folder.file(name.encode() * 32)
        file.write_bytes(bytes(30 - age))
        os.utime(file, ns=(0, age))
    (tmp_path / "somebody's").write_bytes(bytes(500))
    folder.mark_used(b"a" * 32)
    folder.make_room(20)
    left = {name for name in "abcd" if folder.file(name.encode() * 32).exists()}
    assert left == {"a", "d"} and (tmp_path / "somebody's").exists()
    folder.make_room(100)
    assert [f.name for f in sorted(tmp_path.iterdir())] == ["somebody's"]


def test_a_shape_goes_with_its_weights(tmp_path: Path) -> None:
    folder, shape = CacheFolder(tmp_path, 100), CompiledShape(4, 100, 28)
    files = [folder.file(name * 32) for name in (b"a", b"b")]
    for file in files:
        file.write_bytes(bytes(30))
        write_shape(file, shape)
        assert read_shape(file) == shape
    folder.drop(b"a" * 32)
    folder.make_room(100)
    assert list(tmp_path.iterdir()) == [] and read_shape(files[0]) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"max_batch_size": 4}', json.dumps(dict.fromkeys(SHAPE, 0)),
     json.dumps(dict.fromkeys(SHAPE, "4")), json.dumps(dict.fromkeys((*SHAPE, "more"), 4)),
     "[" * 100_000, json.dumps(dict.fromkeys(SHAPE, 10**30)), "\udcff"],
)  # fmt: skip
def test_a_damaged_shape_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.shape").write_text(text, errors="surrogateescape")
    assert read_shape(tmp_path / "a.tiles") is None


def test_a_shape_that_is_no_file_of_ours_is_none(tmp_path: Path) -> None:
    kept, shape = tmp_path / "a.tiles", tmp_path / "a.shape"
    write_shape(tmp_path / "b.tiles", CompiledShape(4, 100, 28))
    shape.symlink_to(tmp_path / "b.shape")
    assert read_shape(kept) is None
    shape.unlink()
    os.mkfifo(shape)
    assert read_shape(kept) is None  # and does not wait for a writer
    write_shape(kept, CompiledShape(1, 2, 3))
    assert read_shape(kept) == CompiledShape(1, 2, 3)


def test_a_shape_without_weights_is_removed(tmp_path: Path) -> None:
    folder, key = CacheFolder(tmp_path, 100), b"a" * 32
    write_shape(folder.file(key), CompiledShape(4, 100, 28))
    folder.make_room(10)
    assert list(tmp_path.iterdir()) == []


def test_where_they_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FLYWEIGHT_CACHE", "FLYWEIGHT_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    plain = PackedCacheSettings(tmp_path / ".cache" / "flyweight", 20 << 30)
    assert PackedCacheSettings.of_environment() == plain
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert PackedCacheSettings.of_environment() == plain
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert PackedCacheSettings.of_environment().folder == Path("/elsewhere/flyweight")
    monkeypatch.setenv("FLYWEIGHT_CACHE", "~/mine")
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "2GB")
    assert PackedCacheSettings.of_environment() == PackedCacheSettings(tmp_path / "mine", 2 * 10**9)
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "much")
    with pytest.raises(ConfigError, match="FLYWEIGHT_CACHE_SIZE = 'much' is not a size"):
        PackedCacheSettings.of_environment()


def test_our_names_and_no_others() -> None:
    assert folders.OURS.fullmatch("0a" * 32 + ".tiles")
    for name in ("0a" * 31 + ".tiles", "0A" * 32 + ".tiles", "0a" * 32 + ".tiles.bak", "x"):
        assert not folders.OURS.fullmatch(name)


@settings(deadline=None)
@given(st.binary(max_size=100), st.data())
def test_damage_changes_a_checksum(raw: bytes, draw: st.DataObject) -> None:
    def checksum(raw: bytes) -> bytes:
        return _native.checksum(np.frombuffer(raw, np.uint8))

    whole = checksum(raw)
    assert len(whole) == 32 and whole == checksum(raw)
    assert whole != checksum(raw + b"\0")
    if raw:
        at, byte = draw.draw(st.integers(0, len(raw) - 1)), draw.draw(st.integers(1, 255))
        assert whole != checksum(raw[:at] + bytes([raw[at] ^ byte]) + raw[at + 1 :])
        assert whole != checksum(raw[:-1])
