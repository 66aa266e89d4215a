"""`flyweight check`: every problem in one report, whatever else is broken, then one token."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from filewriters import encode, entry, gguf_bytes, key, safetensors_bytes
from flyweight.validation.untrusted import read_bytes
from hub_server import Repo
from tiny_model import CONFIG, TEMPLATE, tiny_folder, tiny_tensors

Report = dict[str, list[tuple[str, str]]]


@pytest.fixture
def report(command) -> Callable[..., tuple[int, Report]]:
    """`report(path, ...)` -> exit code, and what each stage found."""

    def call(path: object, *more: object) -> tuple[int, Report]:
        got = command("check", path, "--json", *more)
        assert got.err == "" and got.code in (0, 1), got.err
        found: Report = {}
        for one in json.loads(got.out)["findings"]:
            found.setdefault(one["stage"], []).append((one["level"], one["text"]))
        return got.code, found

    return call


def problems(found: Report) -> list[str]:
    return [text for finds in found.values() for level, text in finds if level == "problem"]


def test_a_model_without_fault(command, report, speaking) -> None:
    code, found = report(speaking)
    assert code == 0 and {level for finds in found.values() for level, _ in finds} == {"ok"}
    stages = ["header", "config", "tensors", "values", "tokenizer", "template", "memory"]
    assert list(found) == [*stages, "one token"]
    assert found["template"] == [("ok", "renders a question, an answer, a system message")]
    shown = command("check", "stories")
    assert shown.code == 0 and shown.out.rstrip().endswith("no problems")
    assert "none: the model completes text" in shown.out


def test_every_problem_is_reported_at_once(command, report, tmp_path) -> None:
    tensors = tiny_tensors()
    del tensors["model.norm.weight"]
    odd = np.zeros((64, 32), np.float32)
    odd[[3, 9], 5] = np.nan, np.inf
    tensors |= {
        "model.layers.0.mlp.up_proj.weight": encode(odd, "f32"),
        "model.layers.1.mlp.up_proj.weight": encode(odd, "bf16"),
        "model.layers.1.self_attn.q_proj.weight": encode(np.ones((4, 32), np.float32), "f32"),
        "stranger.weight": encode(np.full((2, 2), np.inf, np.float32), "f16"),
    }
    config = {"eos_token_id": [481, 9000]}
    template = "{% for m in messages %}{{ m.nothing.at.all }}{% endfor %}"
    folder = tiny_folder(
        tmp_path / "m", config, tensors, {"temperature": -1}, chat_template=template
    )
    code, found = report(folder)
    assert code == 1
    assert found["config"][0][1].startswith("generation_config.json: temperature = -1.0")
    assert ("warning", "end ids [9000] are outside the vocabulary of 483") in found["config"]
    missing, extra, shape = (text for _, text in found["tensors"])
    assert missing == "1 tensor is missing: 'model.norm.weight'"
    assert extra == "1 tensor is not used by this model: 'stranger.weight'"
    assert "q_proj.weight' has shape [4, 32], expected [32, 32]" in shape
    bad = [text.split(" has ")[0] for _, text in found["values"]]
    assert len(bad) == 3 and "'stranger.weight'" in " ".join(bad)
    assert "in 2 of 64 rows, the first in row 3" in found["values"][0][1]
    assert found["template"][0][0] == "problem" and "a question: " in found["template"][0][1]
    assert found["memory"] == [("skipped", "what the model needs is not known")]
    assert found["one token"] == [("skipped", "because of the problems above")]
    shown = command("check", folder)
    assert shown.code == 1 and "10 problems, 1 warning" in shown.out, shown.out


def test_weights_that_are_no_numbers_show_in_the_token(report, tmp_path) -> None:
    tensors = tiny_tensors()
    tensors["model.norm.weight"] = encode(np.full(32, np.nan, np.float32), "f32")
    code, found = report(tiny_folder(tmp_path / "m", tensors=tensors))
    assert code == 1 and len(problems(found)) == 2
    assert "'model.norm.weight' has values that are not finite in 32 of 32" in problems(found)[0]
    assert found["one token"] == [("problem", "the model's scores are not finite numbers")]


def test_every_fault_of_a_gguf_header(report, tmp_path) -> None:
    entries = [
        entry("a", (2, 8), 0, 0),
        entry("b", (2, 8), 99, 64),
        entry("c", (2, 100), 8, 128),
        entry("d", (2, 8), 0, 65),
        entry("a", (2, 8), 0, 0),
        entry("e", (2, 8), 0, 1 << 20),
        entry("f", (2, 8), 0, 32),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([key("general.architecture", "llama")], entries, bytes(256)))
    code, found = report(path)
    says = " ".join(text for level, text in found["header"])
    assert code == 1 and len(found["header"]) == 6
    for word in (
        "'b' has type 99", "rows of 100 elements", "'d' has offset 65", "'a' appears twice",
        "'e' ends at byte", "'f' overlaps 'a'",
    ):  # fmt: skip
        assert word in says, word
    assert "tokenizer.ggml.model is missing" in found["tokenizer"][0][1]
    assert found["tensors"] == [("skipped", "what the model wants is not known")]


def test_every_fault_of_safetensors_headers(report, tmp_path) -> None:
    folder = tiny_folder(tmp_path / "m")
    spans = {
        "a": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": [8, 16]},
        "c": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
        "d": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
        "e": {"dtype": "F32", "shape": [200], "data_offsets": [24, 824]},
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(spans, bytes(24)))
    code, found = report(folder)
    says = [text for _, text in found["header"]]
    assert code == 1 and len(says) == 4, says
    for word in ("'a' has dtype 'C64'", "needs 12 bytes", "'d' overlaps 'c'", "'e' ends at byte"):
        assert any(word in text for text in says), word
    assert found["tokenizer"][0][0] == "ok"  # is looked at all the same


def test_several_files_each_have_their_say(report, tmp_path) -> None:
    folder = tiny_folder(tmp_path / "m")
    whole = read_bytes(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(whole[:-1])
    _, found = report(folder)
    says = [text for _, text in found["header"]]
    assert [text[:13] for text in says[:2]] == ["a.safetensors", "b.safetensors"], says


def test_every_part_of_a_split_model_has_its_say(report, tmp_path) -> None:
    entries = [entry("x", (2, 8), 99, 0)]
    for i in (0, 1):
        keys = [key("split.count", 2), key("split.no", i), key("general.architecture", "llama")]
        part = tmp_path / f"m-0000{i + 1}-of-00002.gguf"
        part.write_bytes(gguf_bytes(keys, entries, bytes(64)))
    (tmp_path / "other-00001-of-00002.gguf").write_bytes(b"GGUF")
    _, found = report(tmp_path / "m-00001-of-00002.gguf")
    says = [text for _, text in found["header"]]
    assert len(says) == 2 and all("'x' has type 99" in text for text in says), says
    assert "m-00002-of-00002.gguf" in says[1]


def test_words_and_ids_that_disagree(report, tmp_path) -> None:
    rows = tiny_tensors(CONFIG | {"vocab_size": 400})
    code, found = report(tiny_folder(tmp_path / "m", {"vocab_size": 400}, rows))
    assert code == 1
    assert ("problem", "483 pieces, but the model knows ids below 400") in found["tokenizer"]
    broken = tiny_folder(tmp_path / "n")
    (broken / "tokenizer.json").write_text("{")
    code, found = report(broken)
    assert code == 1 and "not a readable tokenizer" in found["tokenizer"][0][1]
    assert found["template"] == [("skipped", "there is no tokenizer")]
    assert found["memory"][0][0] == "ok"


def test_templates_that_take_no_system_message_are_warned_of(report, tmp_path) -> None:
    strict = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
    )
    code, found = report(tiny_folder(tmp_path / "m", chat_template=strict))
    assert code == 0 and found["template"][0][0] == "warning"
    assert found["template"][1] == ("ok", "renders a question, an answer")


def test_a_model_that_does_not_fit(report, folder) -> None:
    code, found = report(folder, "--memory-limit", "30MiB")
    assert code == 1 and "memory_limit of 30.0 MiB is too small" in found["memory"][0][1]
    assert [level for level, _ in found["one token"]] == ["skipped"]


def test_words_of_files_do_no_harm(command, tmp_path) -> None:
    tensors = tiny_tensors() | {"\x1b[2J[bold]": encode(np.ones((1, 1), np.float32), "f32")}
    got = command("check", tiny_folder(tmp_path / "m", tensors=tensors))
    assert got.code == 1 and "\x1b" not in got.out and "[bold]" in got.out


def test_what_is_no_model(command, tmp_path) -> None:
    got = command("check", tmp_path / "nothing")
    assert got.code == 2 and got.err.startswith("error: model ")
    (tmp_path / "notes.txt").write_text("no tensor\n")
    for path in (tmp_path / "notes.txt", tmp_path):
        got = command("check", path)
        assert got.code == 1 and "problem" in got.out and "Traceback" not in got.err


def test_a_model_of_the_hub(client, hub, folder: Path) -> None:
    hub.repos["tiny/words"] = Repo({p.name: p.read_bytes() for p in folder.iterdir()})
    got = client("check", "tiny/words")
    assert got.code == 0 and "no problems" in got.out, got.out
