"""Writing a passport into model files: tensors stay as they are, and a file is whole or the old."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from filewriters import encode, gguf_bytes, key, write_gguf
from flyweight.describe import ASSETS, describe
from flyweight.errors import ConfigError
from flyweight.passport import FILE, KEY
from flyweight.weights import passports
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.gguf import read_gguf
from flyweight.weights.passports import find_quality, write_passport
from passports import make_passport, stamp
from tiny_model import tiny_folder, tiny_tensors


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(ASSETS / "stories-draft.gguf", tmp_path / "draft.gguf"))


def list_content(path: Path) -> tuple[list[str], list[tuple[str, bytes]], dict[str, bytes]]:
    """What the gguf package reads: keys in order, tensors, values except for the passport."""
    reader = GGUFReader(path)
    keys = [name for name in reader.fields if not name.startswith("GGUF.")]
    tensors = [(t.name, t.data.tobytes()) for t in reader.tensors]
    values = {name: b"".join(p.tobytes() for p in reader.fields[name].parts) for name in keys}
    return keys, tensors, {name: raw for name, raw in values.items() if name != KEY}


def test_a_gguf_file_gets_one_more_key(model: Path) -> None:
    old = list_content(model)
    fingerprint = open_checkpoint(model).fingerprint
    made = stamp(model)
    keys, tensors, values = list_content(model)
    assert keys == [*old[0], KEY] and tensors == old[1] and values == old[2]
    assert GGUFReader(model).fields[KEY].contents() == made.to_json()
    found = describe(model)
    assert found.quality.passport == made and found.checkpoint.fingerprint == fingerprint
    assert list(model.parent.iterdir()) == [model]


def test_a_second_passport_replaces_the_first(model: Path) -> None:
    stamp(model, text="long" * 200)
    long = model.stat().st_size
    made = stamp(model, text="short")
    keys, *_ = list_content(model)
    assert keys.count(KEY) == 1 and model.stat().st_size < long
    assert find_quality(model).passport == made


def test_mode_and_link_stay(model: Path) -> None:
    model.chmod(0o640)
    link = model.with_name("link.gguf")
    link.symlink_to(model)
    stamp(link)
    assert link.is_symlink() and model.stat().st_mode & 0o777 == 0o640
    assert find_quality(model).passport is not None


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_every_alignment(tmp_path: Path, alignment: int) -> None:
    raw = encode(np.array([1, 2, 3]), "f32")
    small = write_gguf(tmp_path / "small.gguf", {}, {"a": raw})
    entries = [small.read_bytes()[24 : 24 + 8 + 1 + 4 + 8 + 4 + 8]]
    keys = [key("general.alignment", alignment), key("z.z", "last")]
    small.write_bytes(gguf_bytes(keys, entries, raw[2], alignment=alignment))
    passports.rewrite_gguf(small, make_passport())
    new = read_gguf(small)
    span = new.spans["a"]
    assert new.file.copy(span.offset, 12, "a") == raw[2] and new.data % alignment == 0
    assert list(new.metadata) == ["general.alignment", "z.z", KEY]


def test_a_folder_gets_a_file(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    assert find_quality(folder).passport is None
    before = sorted(path.name for path in folder.iterdir())
    made = stamp(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, FILE])
    assert describe(folder).quality.passport == made
    tiny_folder(folder, None, tiny_tensors(seed=1))
    found = describe(folder).quality
    assert found.passport is None and "of other weights" in found.problem
    (folder / FILE).write_text("{")
    assert "damaged" in describe(folder).quality.problem


def test_other_weights_are_not_stamped(model: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(ConfigError, match="changed since it was measured"):
        write_passport(model, make_passport("other"))
    assert model.read_bytes() == before


def test_metadata_that_is_no_text(tmp_path: Path, model: Path) -> None:
    gguf = read_gguf(model)
    head = gguf.file.copy(0, gguf.places["general.architecture"][0], "head")
    rest = gguf.file.copy(len(head), gguf.table - len(head), "rest")
    wrong = key(KEY, 5)
    raw = bytearray(head + wrong + rest)
    raw[16:24] = (len(gguf.places) + 1).to_bytes(8, "little")
    raw += b"\0" * (-len(raw) % 32) + gguf.file.copy(gguf.data, gguf.file.size - gguf.data, "data")
    model.write_bytes(raw)
    found = describe(model)
    assert "a JSON object was expected, found a number" in found.quality.problem
    assert stamp(model) == find_quality(model).passport


def test_a_full_disk_leaves_the_old_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(passports.shutil, "copyfileobj", fail)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        stamp(model)
    monkeypatch.undo()
    usage = shutil.disk_usage(model)._replace(free=1000)
    monkeypatch.setattr(passports.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match="next to it while it is written; 1000 are free"):
        stamp(model)
    assert model.read_bytes() == before and list(model.parent.iterdir()) == [model]


def test_a_file_that_changes_meanwhile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copyfileobj

    def spoil(old: object, new: object, size: int) -> None:
        copy(old, new, size)  # type: ignore[arg-type]
        new.seek(-100, 2)  # type: ignore[attr-defined]
        new.write(b"\xff" * 100)  # type: ignore[attr-defined]

    before = model.read_bytes()
    monkeypatch.setattr(passports.shutil, "copyfileobj", spoil)
    with pytest.raises(passports.CheckpointError, match="changed while it was copied"):
        stamp(model)
    assert model.read_bytes() == before and list(model.parent.iterdir()) == [model]
