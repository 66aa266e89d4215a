"""The directory of a prefix cache: its secret, its locks, its room, and what is refused."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyweight.errors import ConfigError
from flyweight.kv import blockfolder
from flyweight.kv.blockfolder import SECRET, BlockFolder

ONE, TWO, THREE = (bytes([n]) * 32 for n in (1, 2, 3))
HOLD = """
import sys, time
from pathlib import Path
from flyweight.kv.blockfolder import BlockFolder
file = BlockFolder(Path(sys.argv[1]), 1000).open_file(bytes([1]) * 32)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_secret_is_kept_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache"
    secret = BlockFolder(path, 1000).secret
    assert len(secret) == 32 and BlockFolder(path, 1000).secret == secret
    assert path.stat().st_mode & 0o777 == 0o700
    assert (path / SECRET).stat().st_mode & 0o777 == 0o600
    assert os.listdir(path) == [SECRET]
    BlockFolder(path, 1000).open_file(ONE).close()
    assert (path / f"{ONE.hex()}.blocks").stat().st_mode & 0o777 == 0o600
    assert BlockFolder(tmp_path / "other", 1000).secret != secret


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_secret_of_another_size_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SECRET).write_bytes(content)
    with pytest.raises(ConfigError, match="does not have 32 bytes; remove that file") as refused:
        BlockFolder(tmp_path, 1000)
    assert len(str(refused.value).splitlines()) == 1
    assert (tmp_path / SECRET).read_bytes() == content


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(ConfigError, match=r"prefix_cache_dir = .* cannot be used"):
            BlockFolder(path, 1000)
    assert file.read_text() == "mine"


def test_a_directory_that_others_may_change_is_refused(tmp_path: Path) -> None:
    for mode in (0o777, 0o770, 0o702):
        tmp_path.chmod(mode)
        with pytest.raises(ConfigError, match="may be changed by other users"):
            BlockFolder(tmp_path, 1000)
    tmp_path.chmod(0o755)
    BlockFolder(tmp_path, 1000)


def test_links_are_not_followed(tmp_path: Path) -> None:
    path, target = tmp_path / "cache", tmp_path / "target"
    target.write_bytes(b"x" * 32)
    path.mkdir(0o700)
    (path / SECRET).symlink_to(target)
    with pytest.raises(ConfigError, match="cannot be used"):
        BlockFolder(path, 1000)
    (path / SECRET).unlink()
    (path / f"{ONE.hex()}.blocks").symlink_to(target)
    with pytest.raises(ConfigError, match="cannot be used"):
        BlockFolder(path, 1000).open_file(ONE)
    assert target.read_bytes() == b"x" * 32


def test_a_model_has_one_process_at_a_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="is in use by another engine with this model"):
            BlockFolder(tmp_path, 1000).open_file(ONE)
        BlockFolder(tmp_path, 1000).open_file(TWO).close()
        folder = BlockFolder(tmp_path, 100)
        folder.open_file(TWO).close()
        fill(tmp_path, ONE, 90)
        assert not folder.allow(20), "a file in use is not removed"
        other.kill()
    assert folder.allow(20)
    BlockFolder(tmp_path, 1000).open_file(ONE).close()


def fill(folder: Path, fingerprint: bytes, size: int, age: int = 0) -> Path:
    """Makes a file of blocks of that size and age."""
    path = folder / f"{fingerprint.hex()}.blocks"
    with open(path, "ab") as file:
        file.truncate(size)
    os.utime(path, ns=(10**18 - age, 10**18 - age))
    return path


def test_files_of_other_models_go_oldest_first(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, 100)
    new, old = fill(tmp_path, TWO, 30, age=1), fill(tmp_path, THREE, 30, age=2)
    file = folder.open_file(ONE)
    assert folder.allow(40) and new.exists() and old.exists()
    assert folder.allow(60) and new.exists() and not old.exists()
    assert folder.allow(100) and not new.exists()
    assert not folder.allow(101)
    file.close()


def test_only_files_of_our_names_are_counted_or_removed(tmp_path: Path) -> None:
    names = [
        "notes.txt",
        "blocks",
        f"{'a' * 63}.blocks",
        f"{'A' * 64}.blocks",
        f"{'a' * 64}.blocks2",
    ]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 500)
    (tmp_path / f"{'b' * 64}.blocks").mkdir()
    folder = BlockFolder(tmp_path, 100)
    file = folder.open_file(ONE)
    assert folder.allow(100)
    file.close()
    assert all((tmp_path / name).stat().st_size == 500 for name in names)
    assert (tmp_path / f"{'b' * 64}.blocks").is_dir()


def test_replicas_have_the_first_folders_that_are_free(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache"
    pairs = [BlockFolder.open_numbered(path, 100, ONE) for _ in range(3)]
    assert [folder.path for folder, _ in pairs] == [path / "0", path / "1", path / "2"]
    assert all(one.stat().st_mode & 0o777 == 0o700 for one in (path, *path.iterdir()))
    assert len({folder.secret for folder, _ in pairs}) == 3
    pairs[1][1].close()
    again, file = BlockFolder.open_numbered(path, 100, ONE)
    assert (again.path, again.secret) == (path / "1", pairs[1][0].secret)
    other, theirs = BlockFolder.open_numbered(path, 100, TWO)
    assert other.path == path / "0", "the lock is of a model's file"
    for held in (pairs[0][1], pairs[2][1], file, theirs):
        held.close()
    assert sorted(os.listdir(path)) == ["0", "1", "2"]


def test_a_numbered_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """It is not passed over, as nothing would say so."""
    _, file = BlockFolder.open_numbered(tmp_path, 100, ONE)
    (tmp_path / "1").write_text("mine")
    with pytest.raises(ConfigError, match=r"/1' cannot be used: File exists"):
        BlockFolder.open_numbered(tmp_path, 100, ONE)
    (tmp_path / "1").unlink()
    (tmp_path / "1").mkdir()
    (tmp_path / "1").chmod(0o777)
    with pytest.raises(ConfigError, match=r"/1' may be changed by other users"):
        BlockFolder.open_numbered(tmp_path, 100, ONE)
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigError, match=f"{tmp_path.name}' may be changed by other users"):
        BlockFolder.open_numbered(tmp_path, 100, ONE)
    file.close()


def test_folders_that_are_all_in_use_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockfolder, "MOST_FOLDERS", 1)
    _, file = BlockFolder.open_numbered(tmp_path, 100, ONE)
    with pytest.raises(ConfigError, match="has 1 numbered folders, which are all in use"):
        BlockFolder.open_numbered(tmp_path, 100, ONE)
    file.close()


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", lock)
    with pytest.raises(ConfigError, match="cannot be used: No locks available"):
        BlockFolder(tmp_path, 100).open_file(ONE)
    with pytest.raises(ConfigError, match="/0' cannot be used: No locks available"):
        BlockFolder.open_numbered(tmp_path, 100, ONE)
