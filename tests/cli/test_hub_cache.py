"""`flyweight models` and `flyweight rm`: what the cache holds, and removing from it."""

import json

import pytest

from flyweight.describe import ASSETS
from hub_server import Repo, digest
from passports import stamp

STORIES = (ASSETS / "stories.gguf").read_bytes()
DRAFT = (ASSETS / "stories-draft.gguf").read_bytes()


@pytest.fixture
def filled(client, hub) -> None:
    """Two quantisations of one model, and its first revision with one of them."""
    hub.repos["tiny/g"] = Repo({"g-Q8_0.gguf": STORIES, "g-Q4_0.gguf": b"old"}, ("v1",))
    assert client("pull", "tiny/g:Q8_0@v1").code == 0
    hub.repos["tiny/g"] = Repo({"g-Q8_0.gguf": STORIES, "g-Q4_0.gguf": DRAFT})
    assert client("pull", "tiny/g:Q8_0").code == client("pull", "tiny/g:Q4_0").code == 0
    hub.repos["tiny/words"] = Repo({"a-Q8_0.gguf": b"a"})
    assert client("pull", "tiny/words").code == 0


def listed(client) -> list[tuple[str, tuple[str, ...], int]]:
    found = json.loads(client("models", "--json").out)
    return [(one["name"], tuple(one["refs"]), one["size"]) for one in found]


def test_what_is_there(client, hub, filled) -> None:
    assert sorted(listed(client)) == [
        ("tiny/g:Q4_0", ("main",), len(DRAFT)),
        ("tiny/g:Q8_0", ("main",), len(STORIES)),
        ("tiny/g:Q8_0", ("v1",), len(STORIES)),
        ("tiny/words:Q8_0", ("main",), 1),
    ]
    shown = client("models")
    rows = [line.split() for line in shown.out.splitlines() if line.strip().startswith("tiny/")]
    assert [row[0] for row in rows] == [
        "tiny/g:Q4_0", "tiny/g:Q8_0", "tiny/g:Q8_0", "tiny/words:Q8_0"
    ]  # fmt: skip
    assert hub.repos["tiny/g"].commit[:7] in shown.out and "2.9 MiB" in shown.out


def test_one_quantisation_goes_and_what_others_use_stays(client, home, filled) -> None:
    got = client("rm", "tiny/g:q4_0", "--yes")
    assert got.code == 0 and got.out == "freed 0.3 MiB\n", got
    blobs = home / "hub/models--tiny--g/blobs"
    assert [p.name for p in blobs.iterdir()] == [digest(STORIES)]
    got = client("rm", "tiny/g", "--revision", "v1", "-y")  # the blob is main's too
    assert got.out == "freed 0.0 MiB\n" and [p.name for p in blobs.iterdir()] == [digest(STORIES)]
    assert client("run", "tiny/g", "Once", "-n", "2", "--offline").code == 0
    got = client("rm", "tiny/g", "-y")
    assert got.out == "freed 2.9 MiB\n" and not blobs.parent.exists()
    assert [name for name, *_ in listed(client)] == ["tiny/words:Q8_0"]


def test_rm_asks(client, home, filled) -> None:
    got = client("rm", "tiny/words")
    assert got.code == 2 and "stdin is not a terminal; add --yes" in got.err
    ask = """
import io, sys
from flyweight.cli.main import main
sys.stdin = io.StringIO(sys.argv.pop(1) + "\\n")
sys.stdin.isatty = lambda: True
sys.exit(main(sys.argv[1:]))
"""
    got = client("n", "rm", "tiny/words", code=ask)
    assert got.code == 1 and "frees 0.0 MiB? [y/N]" in got.err and "nothing removed" in got.err
    assert ("tiny/words:Q8_0", ("main",), 1) in listed(client)
    assert client("y", "rm", "tiny/words", code=ask).code == 0
    assert not (home / "hub/models--tiny--words").exists()


def test_a_name_that_is_not_there(client, filled) -> None:
    got = client("rm", "tiny/word:Q8_0", "-y")
    assert got.code == 2 and "is not in the cache (did you mean 'tiny/words:Q8_0'?)" in got.err
    got = client("rm", "words", "-y")
    assert got.code == 2 and "'words' is not a name on the Hub; write org/name" in got.err


def test_what_was_stopped_half_way(client, home) -> None:
    empty = client("models")
    assert empty.code == 0 and empty.out.startswith("no models in ") and not empty.err
    assert client("models", "--json").out == "[]\n"
    folder = home / "hub/models--tiny--big/blobs"
    folder.mkdir(parents=True)
    (folder / f"{'0' * 64}.incomplete").write_bytes(bytes(3 << 20))
    assert client("models").err == "unfinished downloads: 3.0 MiB\n"
    assert client("rm", "tiny/big", "-y").out == "freed 3.0 MiB\n" and not folder.parent.exists()


def test_a_cache_that_is_no_cache(client, home) -> None:
    home.mkdir()
    (home / "hub").write_text("a file")
    got = client("models")
    assert got.code == 2 and "Traceback" not in got.err and str(home / "hub") in got.err
    got = client("pull", "tiny/g")
    assert got.code == 2 and "Traceback" not in got.err


def test_no_column_of_quality_where_none_is_known(client, hub) -> None:
    hub.repos["tiny/g"] = Repo({"g-Q4_0.gguf": DRAFT})
    assert client("pull", "tiny/g:Q4_0").code == 0
    assert "quality" not in client("models").out


def test_a_stamped_model_is_listed_with_its_quality(client, home, filled) -> None:
    (path,) = home.glob("hub/models--tiny--g/snapshots/*/g-Q4_0.gguf")
    stamp(path, kld_mean=0.0123)
    found = {one["name"]: one["quality"] for one in json.loads(client("models", "--json").out)}
    assert found.pop("tiny/g:Q4_0")["kld_mean"] == 0.0123
    assert found.pop("tiny/g:Q8_0")["kld_mean"] < 0.003  # the bundled model's own
    assert set(found.values()) == {None}
    shown = client("models").out
    assert "quality" in shown and "0.0123" in shown
