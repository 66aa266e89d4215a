"""Where the API keys of `flyweight serve` come from: options, files, the environment."""

from pathlib import Path

import pytest

from flyweight.cli.serve.choices import ServeChoice, choose
from flyweight.cli.serve.words import read
from flyweight.errors import ConfigError
from flyweight.server.transport.keys import ApiKeys, hash_key


def chosen(*words: object) -> ServeChoice:
    return choose(read([str(word) for word in words]))


def test_keys_of_options_and_files(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    files[0].write_text("# ours\n third \n\nfourth\n")
    files[1].write_text("fifth")
    words = ["--api-key", "first", "second", "--api-key-file", *files, "--host", "0.0.0.0"]
    server = chosen(*words).server
    assert server.keys == ("first", "second") and server.key_files == tuple(map(str, files))
    expected = ("first", "second", "third", "fourth", "fifth")
    assert ApiKeys(server).hashes == tuple(map(hash_key, expected))


def test_a_file_alone_is_a_key_for_a_network(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("secret")
    server = chosen("--host", "0.0.0.0", "--api-key-file", file).server
    assert server.needs_key and server.several_keys  # another may come with a reload
    assert not chosen("--api-key", "secret", "secret").server.several_keys
    assert not chosen().server.needs_key


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "no key in it"), (b"# none\n", "no key in it"), (b"\xff", "not UTF-8 text"),
     (b"k" * ((1 << 20) + 1), "at most 1048576"), (None, "No such file")],
)  # fmt: skip
def test_a_file_without_a_usable_key_is_refused(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        chosen("--api-key-file", file)
    assert f"--api-key-file {file}" in str(caught.value)


@pytest.mark.parametrize("names", [["FLYWEIGHT_API_KEY"], ["VLLM_API_KEY"]])
def test_a_key_of_the_environment(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "other")
    monkeypatch.setenv("FLYWEIGHT_API_KEY", "  ")  # as good as none
    for name in names:
        monkeypatch.setenv(name, " hidden\n")
    choice = chosen("--host", "0.0.0.0")
    assert choice.server.keys == ("hidden",)
    assert [note.requested for note in choice.requests.noted if note.feature in names] == ["set"]
    assert "hidden" not in str(choice.requests)
    assert chosen("--api-key", "given").server.keys == ("given",)
    assert chosen().settings == choice.settings
