"""Packed weights kept between starts: the same weights by another way, believed only when they are
those of the very model, made anew when damaged, written once by several, and never too many.
"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flyweight import LLM, SamplingParams
from flyweight.backends import choose_backend
from flyweight.build import open_packed_cache
from flyweight.config import Settings
from flyweight.describe import ASSETS, SilentListener, describe
from flyweight.errors import CheckpointError
from flyweight.ops.operands import Weight
from flyweight.weights.load import load
from flyweight.weights.packed import keptfile, shelf
from flyweight.weights.packed.folder import CacheFolder
from flyweight.weights.packed.keptfile import HEAD, PackedLayout
from flyweight.weights.packed.shelf import MappedWeights, Opener, UncachedWeights, WrittenWeights

MUTATED = 1200  # bytes of a header that are changed
STORY = SamplingParams(temperature=0, max_tokens=12, logprobs=3)


class Listener(SilentListener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder; small models are kept too."""
    monkeypatch.setattr(shelf, "LEAST", 0)
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("FLYWEIGHT_CACHE_SIZE")
    return tmp_path / "kept"


def story(**given: Any) -> tuple[Any, list[str]]:
    """What the story model says, bit for bit, and what was noted."""
    listener = Listener()
    llm = LLM(**{"threads": 1, "max_model_len": 64, "max_num_seqs": 1, "notify": listener} | given)
    out = llm.generate("Once upon", STORY, use_tqdm=False)[0].outputs[0]
    return (out.token_ids, out.logprobs), listener.notes


def opener(notes: list[str] | None = None) -> Opener:
    """The way to the story model's weights."""
    chosen = Settings(threads=1)
    found = describe(ASSETS / "stories.gguf")
    reported = [] if notes is None else notes
    way = open_packed_cache(
        chosen, found.checkpoint, found.plan, choose_backend(chosen, 1), reported.append
    )
    assert way is not None
    return way


def files(kept: Path) -> list[Path]:
    return sorted(kept.iterdir()) if kept.exists() else []


def test_a_second_start_maps_what_the_first_one_packed(kept: Path) -> None:
    plain, _ = story(packed_cache=False)
    assert files(kept) == []
    first, notes = story()
    [file] = files(kept)
    assert file.suffix == ".tiles" and file.stat().st_mode & 0o777 == 0o600
    assert isinstance(opener().open(), MappedWeights)
    before = file.stat()
    second, more = story()
    assert first == second == plain
    assert notes == more == []
    assert [f.stat().st_ino for f in files(kept)] == [before.st_ino]
    assert file.stat().st_mtime_ns > before.st_mtime_ns, "it counts as used"


def test_every_byte_is_as_packed(kept: Path) -> None:
    story()
    way, found = opener(), describe(ASSETS / "stories.gguf")
    ops = choose_backend(Settings(threads=1), 1)
    mapped = way.open()
    plain = load(found.checkpoint, found.plan, ops)
    kept_too = load(found.checkpoint, found.plan, ops, shelf=mapped)
    slots = [slot.name for slot in found.plan.slots if slot.kind != "vector"]
    assert [place.slot for place in way.layout.places] == slots
    for slot in slots:
        one, other = cast(Weight, plain[slot]), cast(Weight, kept_too[slot])
        assert (one.shape, one.kind, one.nbytes) == (other.shape, other.kind, other.nbytes)
        assert np.array_equal(way.ops.view_packed(one), way.ops.view_packed(other))


def test_what_the_weights_come_from_is_in_the_key(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    raw = (ASSETS / "stories.gguf").read_bytes()
    path.write_bytes(raw)
    os.utime(path, ns=(1, 1_000_000_001))

    def key(**given: Any) -> bytes:
        chosen = Settings(threads=1)
        found = describe(path)
        ops = choose_backend(chosen, 1)
        plan = given.get("plan", found.plan)
        way = open_packed_cache(chosen, found.checkpoint, plan, ops, print)
        assert way is not None
        return way.layout.key

    same = key()
    assert same == key()
    turned = replace(describe(path).plan, slots=describe(path).plan.slots[::-1])
    assert key(plan=turned) != same
    os.utime(path, ns=(1, 1_000_000_002))
    assert key() != same
    path.write_bytes(raw.replace(b"cdla-sharing", b"cdla_sharing", 1))
    os.utime(path, ns=(1, 1_000_000_001))
    assert key() != same


def test_another_packing_is_another_file(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flyweight.ops.cpu import CpuOps

    before = opener().layout.key
    monkeypatch.setattr(CpuOps, "packing", "tiles 0")
    assert opener().layout.key != before


@pytest.mark.parametrize("harm", ["cut", "longer", "magic", "key", "count", "digest", "checksum"])
def test_a_damaged_file_is_made_anew(kept: Path, harm: str) -> None:
    first, _ = story()
    [file] = files(kept)
    places = {"magic": 0, "key": 30, "count": 56, "digest": 70, "checksum": HEAD + 5}
    if harm in places:
        with open(file, "r+b") as at:
            at.seek(places[harm])
            byte = at.read(1)[0]
            at.seek(places[harm])
            at.write(bytes([byte ^ 1]))
    else:
        os.truncate(file, file.stat().st_size + (1 if harm == "longer" else -1))
    second, notes = story()
    assert first == second
    assert len(notes) == 1 and notes[0].startswith("kept packed weights are made again: it")
    assert isinstance(opener().open(), MappedWeights)
    assert story() == (first, [])


def damage(file: Path) -> None:
    with open(file, "r+b") as at:
        at.seek(2 << 20)
        at.write(b"\xff\x00\xff")


def test_after_another_boot_checksums_are_verified_once(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = story()
    monkeypatch.setattr(keptfile, "read_boot_id", lambda: b"another boot    ")
    looked: list[int] = []
    real = keptfile.find_damaged
    monkeypatch.setattr(keptfile, "find_damaged", lambda *given: looked.append(1) or real(*given))
    assert story() == story() == (first, [])
    assert looked == [1]
    monkeypatch.setattr(keptfile, "read_boot_id", lambda: b"a third boot    ")
    damage(files(kept)[0])
    second, notes = story()
    assert second == first
    assert notes == ["kept packed weights are made again: 1 of its matrices are damaged: embed"]


def test_checksums_are_verified_when_requested(kept: Path) -> None:
    story()
    way, [file] = opener(), files(kept)
    keptfile.check_file(file, way.layout, 2)
    damage(file)
    with pytest.raises(CheckpointError, match="1 of its matrices are damaged: embed"):
        keptfile.check_file(file, way.layout, 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bytes, PackedLayout, Path]]:
    """A kept file's bytes, its layout, and where to put what became of it."""
    root = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "LEAST", 0)
        patch.setenv("FLYWEIGHT_CACHE", str(root))
        patch.delenv("FLYWEIGHT_CACHE_SIZE")
        story()
        found = files(root)[0].read_bytes(), opener().layout, root / "changed"
    yield found


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.integers(0, MUTATED - 1), st.integers(0, 255)), max_size=4),
    st.one_of(st.none(), st.integers(0, 8 << 20)),
)
def test_no_header_maps_beyond_its_file(
    whole: tuple[bytes, PackedLayout, Path], edits: list[tuple[int, int]], size: int | None
) -> None:
    """Whatever its bytes are, a file is used as it was written, or refused."""
    original, layout, path = whole
    table = HEAD + 32 * len(layout.places)
    raw = bytearray(original[:MUTATED])
    for at, byte in edits:
        raw[at] = byte
    path.write_bytes(raw[:size] if size is not None else raw + original[MUTATED:])
    if size is not None:
        os.truncate(path, size)
    used: list[int] = []
    try:
        keptfile.open_verified(path, layout, 1, used.append)
    except (CheckpointError, OSError):
        assert used == []
        return
    assert used and path.stat().st_size == layout.size
    assert raw[:8] + raw[24:table] == original[:8] + original[24:table], "but for the boot"


def test_a_file_of_another_user_is_not_trusted(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = story()
    monkeypatch.setattr(keptfile, "_is_trusted", lambda owner: owner != os.geteuid())
    second, notes = story()
    assert second == first
    assert notes == ["kept packed weights are made again: it belongs to another user"]


def test_two_writers_are_one(kept: Path) -> None:
    one, other = opener().open(), opener().open()
    assert isinstance(one, WrittenWeights) and isinstance(other, UncachedWeights)
    other.close(True)
    one.close(False)
    assert files(kept) == [], "given up"
    story()
    assert isinstance(opener().open(), MappedWeights)


def test_what_a_crash_left_is_taken_over(kept: Path) -> None:
    kept.mkdir()
    way = opener()
    left = kept / f"{way.layout.key.hex()}.partial"
    left.write_bytes(b"half" * 1000)
    older = kept / f"{'0' * 64}.partial"
    older.write_bytes(b"half")
    first, notes = story()
    assert notes == [] and [f.suffix for f in files(kept)] == [".tiles"]
    assert story() == (first, [])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_costs_a_note(
    kept: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    plain, _ = story(packed_cache=False)

    def refuse(*given: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", refuse)
    found, notes = story()
    assert found == plain and files(kept) == []
    assert notes == [f"packed weights are not kept: {os.strerror(code)}"]


def test_a_folder_that_is_none_costs_a_note(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path / "file" / "kept"))
    found, notes = story()
    assert found == story(packed_cache=False)[0]
    assert len(notes) == 1 and "Not a directory" in notes[0]


def test_a_nearly_full_disk_is_left_alone(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheFolder, "count_free", lambda self: 1 << 20)
    assert story()[1] == ["packed weights are not kept: the disk is nearly full"]
    assert files(kept) == []


def test_a_failed_load_leaves_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    class Impatient(Listener):
        def report_progress(self, done: int, total: int) -> None:
            if done > total // 2:
                raise Stopped

    impatient = Impatient()
    with pytest.raises(Stopped):
        LLM(notify=impatient, threads=1)
    assert files(kept) == []


def test_small_models_are_not_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(kept))
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "1GiB")
    assert story()[1] == [] and files(kept) == []


def test_a_model_above_the_room_is_not_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "2MiB")
    assert story()[1] == [] and files(kept) == []


def test_a_file_in_use_may_lose_its_name(kept: Path) -> None:
    story()
    llm = LLM(threads=1, max_model_len=64, max_num_seqs=1)
    opener().folder.make_room(1 << 60)
    assert files(kept) == []
    assert llm.generate("Once upon", STORY, use_tqdm=False)[0].outputs[0].token_ids


TWICE = """
import json, sys
from flyweight import LLM, SamplingParams, _native
from flyweight.weights.packed import shelf
shelf.LEAST = 0
llm = LLM(threads=1, max_model_len=64, max_num_seqs=1)
params = SamplingParams(temperature=0, max_tokens=12)
print(json.dumps(llm.generate("Once upon", params, use_tqdm=False)[0].outputs[0].token_ids))
"""


def test_a_writer_that_comes_late_leaves_no_name(tmp_path: Path) -> None:
    """It opened the partial file's name after another process had given that file its own."""
    folder, key = CacheFolder(tmp_path, 1 << 20), b"k" * 32
    with folder.write_partial(key) as file:
        assert file is not None
    with folder.write_partial(key) as file:
        assert file is None
    assert [f.suffix for f in tmp_path.iterdir()] == [".tiles"]


def test_two_processes_start_at_once(kept: Path) -> None:
    paths = os.pathsep.join(p for p in sys.path if p)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", TWICE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        for _ in range(3)
    ]
    said = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], said
    (expected, _), _ = story(packed_cache=False)
    assert [json.loads(out) for out, _ in said] == [list(expected)] * 3
    assert [f.suffix for f in files(kept)] == [".tiles"]


def test_the_reference_keeps_nothing(kept: Path) -> None:
    story(backend="reference", activations="f32")
    assert files(kept) == []
