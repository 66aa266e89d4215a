"""Models of the Hub on the command line: the unpatched client, in processes of its own, against a
stand-in Hub on this machine.
"""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from filewriters import encode, write_gguf
from flyweight.describe import ASSETS
from hub_server import Repo, digest
from tiny_model import tiny_folder, tiny_tensors
from torchwriter import torch_bytes

GREEDY = ("--temperature", "0", "-n", "8", "--ignore-eos")
STORIES = (ASSETS / "stories.gguf").read_bytes()
DRAFT = (ASSETS / "stories-draft.gguf").read_bytes()
STRANGERS = {  # of a repository, and nothing to us
    "README.md": b"# words\n",
    ".gitattributes": b"",
    "pytorch_model.bin": b"\x80\x04" + bytes(100),
    "onnx/model.onnx": bytes(100),
    "original/consolidated.00.pth": bytes(100),
    "training.png": bytes(100),
}


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> dict[str, bytes]:
    """The files of a model in safetensors."""
    folder = tiny_folder(tmp_path_factory.mktemp("words") / "model", generation={"top_k": 5})
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(got, *words: str) -> None:
    assert got.code == 2 and got.out == "", got
    line = got.err.splitlines()[-1]
    assert line.startswith("error: ") and "Traceback" not in got.err
    for word in words:
        assert word in line, line


def blobs(path: Path) -> list[Path]:
    return sorted(path.glob("hub/models--*/blobs/*"))


# --- what is fetched ---


def test_a_model_runs_by_its_name(client, hub, words, folder) -> None:
    hub.repos["tiny/words"] = Repo(words | STRANGERS)
    local = client("run", folder, "hello there", *GREEDY)
    got = client("run", "tiny/words", "hello there", *GREEDY)
    assert got.code == 0 and got.out == local.out, got.err
    assert "tiny/words: safetensors of " in got.err
    assert sorted(set(hub.bodies())) == sorted(words)
    to_cdn = [a for a in hub.requested if a.path.startswith("/cdn/")]
    assert to_cdn and not any(a.token for a in to_cdn)
    assert any(a.token == "Bearer secret" for a in hub.requested)
    hub.requested.clear()
    again = client("run", "tiny/words", "hello there", *GREEDY)
    assert again.out == local.out and not hub.requested


def test_the_python_interface_takes_names(client, hub, words) -> None:
    hub.repos["tiny/words"] = Repo(words)
    code = """
from flyweight import LLM, CheckpointError
print(LLM("tiny/words").generate("hello", use_tqdm=False)[0].outputs[0].finish_reason)
try:
    LLM("tiny/wrods")
except CheckpointError as error:
    print(error)
"""
    got = client(code=code)
    assert got.code == 0, got.err
    done, missing = got.out.splitlines()
    assert done == "length" and missing.startswith("tiny/wrods is neither a file or folder here")


def test_sharded_safetensors(client, hub, tmp_path, home) -> None:
    from filewriters import write_folder
    from tiny_model import CONFIG, tiny_tensors

    tiny_folder(tmp_path / "one")
    write_folder(tmp_path / "many", CONFIG, tiny_tensors(), shards=3)
    files = {p.name: p.read_bytes() for p in (tmp_path / "many").iterdir()}
    both = {"tokenizer.json": (tmp_path / "one" / "tokenizer.json").read_bytes(), **files}
    hub.repos["tiny/many"] = Repo(both | {"consolidated.safetensors": b"the same again"})
    got = client("run", "tiny/many", "hello there", *GREEDY)
    assert got.code == 0 and "consolidated.safetensors" not in hub.bodies(), got.err
    assert client("run", "tiny/many", "hello there", *GREEDY, "--offline").out == got.out


def test_a_quantisation_by_name_or_by_choice(client, hub) -> None:
    files = {"T-Q8_0.gguf": STORIES, "T-Q4_K_M.gguf": DRAFT}
    files |= {"T-IQ2_XXS.gguf": b"x", "mmproj-F16.gguf": b"y"}
    hub.repos["tiny/T-GGUF"] = Repo(files | STRANGERS)
    got = client("pull", "tiny/T-GGUF:q8_0")
    assert got.code == 0 and got.out.endswith("/T-Q8_0.gguf\n"), got.err
    assert client("run", "tiny/T-GGUF", "Once", *GREEDY).err.startswith("T-Q8_0.gguf: ")  # is there
    got = client("pull", "tiny/T-GGUF")
    assert got.out.endswith("/T-Q4_K_M.gguf\n")
    assert "Q4_K_M of 0.3 MiB, the first that fits of Q4_K_M, Q8_0" in got.err, got.err
    assert client("pull", "tiny/T-GGUF:t-q8_0.gguf").out.endswith("/T-Q8_0.gguf\n")
    refused(client("pull", "tiny/T-GGUF", "--revision", "v9"), "has no revision v9")
    refused(client("pull", "tiny/T-GGUF:Q4_K_S"), "'Q4_K_S' (did you mean 'Q4_K_M'?)", "Q8_0 (")
    assert set(hub.bodies()) == {"T-Q8_0.gguf", "T-Q4_K_M.gguf"}


def test_every_part_of_a_split_model_is_fetched(client, hub) -> None:
    parts = {f"Q8_0/B-Q8_0-0000{i}-of-00003.gguf": bytes([i]) * 99 for i in (1, 2, 3)}
    hub.repos["tiny/B"] = Repo(parts | {"B-Q4_0-00001-of-00002.gguf": b"half of it"})
    got = client("pull", "tiny/B:Q8_0")
    assert got.out.endswith("/Q8_0/B-Q8_0-00001-of-00003.gguf\n"), got.err
    assert sorted(hub.bodies()) == [Path(p).name for p in parts]


def test_a_split_model_opens_from_the_cache(client, hub, tmp_path) -> None:
    """Its parts are united before its metadata, which says too little here, is looked at."""
    parts = {}
    for i, name in enumerate(("token_embd.weight", "output_norm.weight")):
        keys = {"split.count": 2, "split.no": i, "split.tensors.count": 2}
        keys |= {} if i else {"general.architecture": "llama"}
        raw = encode(np.ones((2, 32), np.float32), "f32")
        file = write_gguf(tmp_path / f"S-F32-0000{i + 1}-of-00002.gguf", keys, {name: raw})
        parts[file.name] = file.read_bytes()
    hub.repos["tiny/S"] = Repo(parts)
    assert client("pull", "tiny/S:f32").code == 0
    got = client("check", "tiny/S", "--json")
    header = [f["text"] for f in json.loads(got.out)["findings"] if f["stage"] == "header"]
    assert len(header) == 1 and "llama." in header[0] and "is missing" in header[0], header


def test_revisions_and_what_has_changed(client, hub, words) -> None:
    hub.repos["tiny/words"] = Repo(words, ("main", "v1"))
    first = client("pull", "tiny/words@v1")
    assert first.code == 0 and client("pull", "tiny/words", "--revision", "v1").out == first.out
    hub.requested.clear()
    hub.repos["tiny/words"] = Repo(words | {"generation_config.json": b'{"top_k": 7}'})
    second = client("pull", "tiny/words")
    assert second.code == 0 and second.out != first.out
    assert hub.bodies() == ["generation_config.json"]  # the others are known by their etags
    assert client("run", "tiny/words@v1", "hi", *GREEDY, "--offline").code == 0
    refused(client("run", "tiny/words", "hi", "--revision", "../x"), "revision = '../x'")


def test_a_bar_at_a_terminal(client, hub) -> None:
    hub.repos["tiny/g"] = Repo({"g-Q8_0.gguf": STORIES + os.urandom(25_000_000)})
    got = client("pull", "tiny/g", FORCE_COLOR="1")  # represents a terminal
    assert got.code == 0 and "fetching g-Q8_0.gguf" in got.err and "MiB" in got.err
    assert "fetching" not in client("pull", "tiny/g").err


# --- what is not ---


def test_pytorchs_file_is_fetched_where_there_is_nothing_else(client, hub, words, folder) -> None:
    """Where there are safetensors it is not: test_a_model_runs_by_its_name."""
    old = {k: v for k, v in words.items() if not k.endswith(".safetensors")}
    hub.repos["tiny/old"] = Repo(
        old | STRANGERS | {"pytorch_model.bin": torch_bytes(tiny_tensors())}
    )
    local = client("run", folder, "hello there", *GREEDY)
    got = client("run", "tiny/old", "hello there", *GREEDY)
    assert got.code == 0 and got.out == local.out, got.err
    assert "tiny/old: pytorch_model.bin of " in got.err
    assert sorted(set(hub.bodies())) == sorted([*old, "pytorch_model.bin"])
    hub.requested.clear()
    assert client("run", "tiny/old", "hello there", *GREEDY).out == local.out and not hub.requested
    listed = client("models").out
    assert "tiny/old " in listed and "pytorch_model.bin" in listed


def test_a_pickle_that_would_run_code_is_refused(client, hub, words) -> None:
    old = {k: v for k, v in words.items() if not k.endswith(".safetensors")}
    call = b"\x80\x02cposix\nsystem\nX\x0e\0\0\0touch /tmp/fooR."
    hub.repos["tiny/bad"] = Repo(old | {"pytorch_model.bin": call})
    refused(client("run", "tiny/bad", "hi"), "pytorch_model.bin: at byte", "'posix.system'")


def test_other_pickles_are_not_fetched(client, hub, words) -> None:
    old = {k: v for k, v in words.items() if not k.endswith(".safetensors")}
    hub.repos["tiny/pt"] = Repo(old | {"model.pt": bytes(100)})
    says = ("'model.pt' is all there is", "it is not read", "GGUF")
    refused(client("run", "tiny/pt", "hi"), *says)
    refused(client("run", "tiny/pt:model.pt", "hi"), "it is not read")
    assert hub.bodies() == []


def test_what_we_do_not_run_is_refused_before_its_weights(client, hub, words) -> None:
    config = json.dumps({"model_type": "lama"}).encode()
    hub.repos["tiny/other"] = Repo(words | {"config.json": config})
    refused(client("pull", "tiny/other"), "tiny/other: ", "model_type = 'lama'", "known: ")
    hub.repos["tiny/both"] = Repo(words | {"config.json": config, "x-Q8_0.gguf": STORIES})
    got = client("pull", "tiny/both")
    assert got.out.endswith("/x-Q8_0.gguf\n") and "not for us: model_type = 'lama'" in got.err
    hub.repos["tiny/bert-GGUF"] = Repo({"b-Q8_0.gguf": b"x"}, gguf={"architecture": "bert"})
    refused(client("pull", "tiny/bert-GGUF"), "'bert'")
    assert "model.safetensors" not in hub.bodies() and "b-Q8_0.gguf" not in hub.bodies()


GATED = Repo({"a-Q8_0.gguf": b"x"}, refused=403, code="GatedRepo")


REFUSALS: dict[str, tuple[Repo | None, tuple[str, ...]]] = {
    "missing": (None, ("neither a file or folder here nor a model at http://127.0.0.1", "(404)")),
    "private": (Repo({}, refused=401), ("(401)", "if it is private, set HF_TOKEN")),
    "forbidden": (Repo({}, refused=403), ("(403)", "set HF_TOKEN")),
    "gated": (GATED, ("is gated (403)", "accept its terms at http://127.0.0.1")),
    "nothing": (Repo({"README.md": b""}), ("has no config.json with safetensors or",)),
    "ambiguous": (
        Repo({"a-Q4_0.gguf": b"x", "b-Q4_0.gguf": b"y"}),
        ("which of its files? it has a-Q4_0.gguf, b-Q4_0.gguf",),
    ),
    "leads out": (
        Repo({"../../a-Q4_0.gguf": b"x"}),
        ("'../../a-Q4_0.gguf' is not a plain file name",),
    ),
    "escapes": (
        Repo({"\x1b[2J-Q4_0.gguf": b"x"}),
        ("'\\x1b[2J-Q4_0.gguf' is not a plain file name",),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_line(client, hub, case) -> None:
    repo, says = REFUSALS[case]
    hub.repos |= {"tiny/x": repo} if repo else {}
    got = client("pull", "tiny/x")
    refused(got, *says)
    assert len(got.err.splitlines()) <= 2 and hub.bodies() == []


# --- on a bad day ---


def test_a_rate_limit_is_waited_for(client, hub) -> None:
    hub.repos["tiny/g"] = Repo({"g-Q8_0.gguf": STORIES})
    hub.faults = {"/revision/main": ["429"], "g-Q8_0.gguf": ["", "429"]}
    got = client("pull", "tiny/g")
    assert got.code == 0, got.err
    assert "the Hub is busy (429); trying again in 1 s" in got.err
    hub.retry_after = "3600"
    hub.faults = {"/revision/main": ["429"]}
    refused(client("pull", "tiny/h"), "too many requests from here (429)", "HF_TOKEN")


def test_a_body_cut_short_is_gone_on_with(client, hub) -> None:
    """In the same run, from the last piece of 10 MB that came whole."""
    big = STORIES + os.urandom(15_000_000)
    hub.repos["tiny/g"] = Repo({"g-Q8_0.gguf": big})
    hub.faults = {f"/cdn/{digest(big)}/g-Q8_0.gguf": ["cut 12000000"]}
    got = client("pull", "tiny/g")
    assert got.code == 0, got.err
    assert Path(got.out.strip()).read_bytes() == big
    first, rest = [a for a in hub.requested if a.path.startswith("/cdn/")]
    assert first.range == "" and first.sent == 12_000_000
    begun = int(rest.range.removeprefix("bytes=").removesuffix("-"))
    assert begun >= 10_000_000 and rest.sent == len(big) - begun


def test_killed_and_run_again_it_asks_for_the_rest(client, hub, home) -> None:
    """What the client writes comes in pieces of 10 MB; two of three are there when it is killed."""
    big = STORIES + os.urandom(25_000_000)
    hub.repos["tiny/big"] = Repo({"b-Q8_0.gguf": big})
    hub.faults = {"/b-Q8_0.gguf": ["", f"stay {24_000_000}"]}
    process = client("pull", "tiny/big", start=True)
    partial = home / "hub/models--tiny--big/blobs" / f"{digest(big)}.incomplete"
    end = time.monotonic() + 60
    while not partial.exists() or partial.stat().st_size < 20_000_000:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    begun = partial.stat().st_size
    hub.requested.clear()
    got = client("pull", "tiny/big")
    assert got.code == 0 and f"going on from {begun} of {len(big)} bytes" in got.err, got.err
    assert Path(got.out.strip()).read_bytes() == big
    (rest,) = [a for a in hub.requested if a.path.startswith("/cdn/")]
    assert rest.range == f"bytes={begun}-" and rest.sent == len(big) - begun
    assert [p.name for p in blobs(home)] == [digest(big)]


def test_a_server_without_ranges_starts_over(client, hub, home) -> None:
    hub.repos["tiny/g"] = Repo({"g-Q8_0.gguf": STORIES})
    folder = home / "hub/models--tiny--g/blobs"
    folder.mkdir(parents=True)
    (folder / f"{digest(STORIES)}.incomplete").write_bytes(STORIES[:1000])
    hub.faults = {f"/cdn/{digest(STORIES)}/g-Q8_0.gguf": ["whole"]}
    got = client("pull", "tiny/g")
    assert got.code == 0 and Path(got.out.strip()).read_bytes() == STORIES, got.err


def test_what_arrives_damaged_is_not_kept(client, hub, home) -> None:
    hub.repos["tiny/g"] = Repo({"g-Q8_0.gguf": STORIES})
    folder = home / "hub/models--tiny--g/blobs"
    folder.mkdir(parents=True)
    (folder / f"{digest(STORIES)}.incomplete").write_bytes(bytes(1000))
    got = client("pull", "tiny/g")  # an old part was damaged: all of it anew
    assert got.code == 0 and "SHA-256 is wrong; fetching it from the start" in got.err
    hub.repos["tiny/h"] = Repo({"h-Q8_0.gguf": DRAFT})
    hub.faults = {f"/cdn/{digest(DRAFT)}/h-Q8_0.gguf": ["damage"]}
    refused(client("pull", "tiny/h"), "arrived damaged: its SHA-256 is wrong; try again")
    assert not list((home / "hub/models--tiny--h/blobs").iterdir())


def test_a_full_disk(client, hub) -> None:
    """A limit on the size of files takes its place; what has come is kept."""
    big = STORIES + os.urandom(20_000_000)
    hub.repos["tiny/big"] = Repo({"b-Q8_0.gguf": big})
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000_000, resource.RLIM_INFINITY))
from flyweight.cli.main import main
sys.exit(main(["pull", "tiny/big"]))
"""
    refused(client(code=code), "File too large", "the next run goes on with what has come")
    assert "going on from 12000000 of" in client("pull", "tiny/big").err
    code = """
import shutil, sys
from types import SimpleNamespace
shutil.disk_usage = lambda path: SimpleNamespace(free=1000)
from flyweight.cli.main import main
sys.exit(main(["pull", "tiny/more"]))
"""
    hub.repos["tiny/more"] = Repo({"b-Q8_0.gguf": DRAFT})
    refused(client(code=code), f"needs {len(DRAFT)} more bytes in ", "1000 are free; flyweight rm")


def test_without_a_network(client, hub, words, folder) -> None:
    hub.repos["tiny/words"] = Repo(words)
    local = client("run", folder, "hello there", *GREEDY)
    assert client("pull", "tiny/words").code == 0
    hub.requested.clear()
    for more in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        got = client("run", "tiny/words", "hello there", *GREEDY, **more)
        assert got.code == 0 and got.out == local.out and "network" not in got.err
    got = client("pull", "tiny/words", HF_ENDPOINT="http://127.0.0.1:9")
    assert got.code == 0 and "no network: http://127.0.0.1:9 cannot be reached" in got.err
    assert "the copy in the cache will do" in got.err
    got = client("run", "tiny/new", "hi", HF_ENDPOINT="http://127.0.0.1:9")
    refused(got, "no network: http://127.0.0.1:9 cannot be reached", "not in the cache either")
    for got in (
        client("run", "tiny/new", "hi", "--offline"),
        client("run", "tiny/new", "hi", HF_HUB_OFFLINE="1"),
    ):
        refused(got, "tiny/new is not in the cache", "flyweight pull tiny/new")
    assert hub.requested == []


def test_something_that_is_no_hub(client, hub) -> None:
    hub.repos["tiny/x"] = Repo({}, gguf={"y": 1})
    hub.faults = {"/revision/main": ["200"]}
    refused(client("pull", "tiny/x"), "does not answer as a Hub does")
    hub.faults = {"/revision/main": ["500"]}
    refused(client("pull", "tiny/x"), "is in trouble itself (500)")
