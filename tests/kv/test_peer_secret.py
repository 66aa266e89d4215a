"""The secret of peers: which files are taken, and the keys made of it."""

from pathlib import Path

import pytest

from flyweight.errors import ConfigError
from flyweight.kv.peers.secret import MOST, SharedSecret, read_secret


def make(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_equal_files_have_equal_keys(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a", b"x" * 32), make(tmp_path / "b", b"x" * 32, 0o640)
    secret = read_secret(one)
    assert secret == read_secret(two) == SharedSecret.of(b"x" * 32)
    assert secret != read_secret(make(tmp_path / "c", b"x" * 33))
    assert len(secret.blocks) == len(secret.peers) == 32 and secret.blocks != secret.peers
    assert b"x" * 4 not in secret.blocks + secret.peers
    assert read_secret(make(tmp_path / "d", bytes(MOST)))


@pytest.mark.parametrize(("content", "mode", "said"), [
    (b"", 0o600, "has 0 bytes; allowed: 32 to 4096 bytes; run: openssl rand -hex 32 > FILE"),
    (b"x" * 31, 0o600, "has 31 bytes"),
    (bytes(MOST + 1), 0o600, "has more than 4096 bytes"),
    (b"x" * 32, 0o644, "may be read or changed by other users; run: chmod 600 FILE"),
    (b"x" * 32, 0o660, "may be read or changed by other users"),
])  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, content: bytes, mode: int, said: str) -> None:
    path = make(tmp_path / "secret", content, mode)
    with pytest.raises(ConfigError) as refused:
        read_secret(path)
    text = str(refused.value)
    assert text.startswith(f"prefix_cache_secret_file = '{path}'"[:60]) and said in text
    assert "\n" not in text and "xxx" not in text


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_secret(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_secret(tmp_path)
