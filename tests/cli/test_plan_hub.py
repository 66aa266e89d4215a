"""`flyweight plan` of a name on the Hub: the unpatched client fetches what says the shape, and no
weights.
"""

import json

import numpy as np

from filewriters import encode, write_gguf
from flyweight.describe import ASSETS
from hub_server import Repo
from tiny_model import CONFIG

WORDS = ("plan", "memory", "tiny/model", "--device", "laptop-8")


def test_only_the_config_of_a_folder_is_fetched(client, hub) -> None:
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": bytes(1 << 20)}
    hub.repos["tiny/model"] = Repo({**files, "tokenizer.json": b"{}"})
    got = client(*WORDS)
    assert got.code == 0 and "Known from config.json" in got.out, got
    assert hub.bodies() == ["config.json"]
    assert client("models").out.count("tiny/model") == 0  # nothing is in the cache


def test_only_the_header_of_a_gguf_file_is_fetched(client, hub, tmp_path) -> None:
    path = tmp_path / "long.gguf"
    stories = (ASSETS / "stories.gguf").read_bytes()
    path.write_bytes(stories)
    hub.repos["tiny/model"] = Repo({"tiny-Q8_0.gguf": stories})
    got, local = client(*WORDS, "--json"), client("plan", "memory", path, *WORDS[3:], "--json")
    assert got.code == 0, got.err
    tables, expected = json.loads(got.out)["tables"], json.loads(local.out)["tables"]
    assert tables["weights"] == expected["weights"]
    fetched = [one for one in hub.requested if one.path.endswith("/tiny-Q8_0.gguf")]
    assert [one.range for one in fetched if one.sent] == ["bytes=0-1048575"]


def test_more_of_a_header_is_fetched_until_it_is_whole(client, hub, tmp_path) -> None:
    metadata = {"general.architecture": "llama", "tokenizer.chat_template": "x" * (5 << 19)}
    rows = encode(np.zeros((32, 32), np.float32), "f32")
    write_gguf(tmp_path / "odd.gguf", metadata, {"token_embd.weight": rows})
    hub.repos["tiny/model"] = Repo({"odd-F32.gguf": (tmp_path / "odd.gguf").read_bytes()})
    got = client(*WORDS)
    assert got.code == 2 and got.err.count("\n") == 1  # its config is incomplete
    ranges = [one.range for one in hub.requested if one.sent and one.path.startswith("/cdn/")]
    assert ranges[:2] == ["bytes=0-1048575", "bytes=1048576-2097151"] and len(ranges) == 3


def test_what_is_no_gguf_is_refused_at_once(client, hub) -> None:
    hub.repos["tiny/model"] = Repo({"odd-Q8_0.gguf": bytes(8 << 20)})
    got = client(*WORDS)
    assert got.code == 2 and "this is not a GGUF file" in got.err and "odd-Q8_0.gguf" in got.err
    assert "/tmp" not in got.err and len([one for one in hub.requested if one.sent]) == 1


def test_offline_and_unknown_names_are_refused(client, hub) -> None:
    got = client(*WORDS, "--offline")
    assert got.code == 2 and "not in the cache" in got.err and not hub.requested
    assert "`flyweight plan memory --params 8B --bits 4` needs no file" in got.err
    got = client(*WORDS)
    assert got.code == 2 and "nor a model at" in got.err
