"""`flyweight eval`: figures with what they were taken on, and refusals in one line."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from tiny_model import tiny_folder, tiny_tensors


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "words.txt"
    file.write_text("a small bird sat in the old tree and sang. " * 40, encoding="utf-8")
    return file


def test_perplexity_of_a_text(command, folder, text) -> None:
    words = ("eval", "ppl", folder, "--text", text, "--context", 64, "--limit-tokens", 300)
    shown = command(*words)
    assert shown.code == 0, shown.err
    first, *_ = shown.out.splitlines()
    assert first.startswith("Perplexity:") and "±" in first
    assert "64 tokens, each with the beginning token, 32 new in each" in shown.out
    assert "words.txt, SHA-256" in shown.out and "Tokens:      300 scored" in shown.out
    got = command(*words, "--json")
    found = json.loads(got.out)
    assert got.err == "" and found["tokens"] == 300 and found["stride"] == 32
    assert f"{found['perplexity']:.4f}" in first


def test_one_window_has_no_error(command, folder, text) -> None:
    words = ("eval", "ppl", folder, "--text", text, "--context", 64, "--limit-tokens", 63)
    shown = command(*words)
    assert shown.code == 0 and "one window: no error is known" in shown.out
    assert json.loads(command(*words, "--json").out)["perplexity_error"] is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--context", 64, "--stride", 64), "stride = 64 is out of range"),
        (("--context", 1), "context = 1"),
        (("--context", 64, "--limit-tokens", 20), "fewer than context = 64"),
        (("--context", 200000), "fewer than context = 200000; nearest valid: context = "),
        (("--text", "nowhere.txt"), "nowhere.txt: No such file"),
    ],
)
def test_refusals(command, folder, text, more, words) -> None:
    shown = command("eval", "ppl", folder, "--text", text, *more)
    assert shown.code == 2 and shown.out == ""
    last = shown.err.splitlines()[-1]
    assert last.startswith("error: ") and words in last, shown.err


def test_an_empty_text(command, folder, tmp_path) -> None:
    (tmp_path / "empty.txt").touch()
    shown = command("eval", "ppl", folder, "--text", tmp_path / "empty.txt")
    assert shown.code == 2
    assert shown.err == "error: text has no token to score; give a longer text\n"


def test_text_that_is_no_text(command, folder, tmp_path, monkeypatch) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"caf\xe9 " * 100)
    shown = command("eval", "ppl", folder, "--text", file)
    assert shown.code == 2 and "is not UTF-8 at byte 3" in shown.err
    monkeypatch.delenv("FLYWEIGHT_DATA", raising=False)
    shown = command("eval", "ppl", folder, "--limit-tokens", "600")
    assert shown.code == 0 and "Text:        help of Python 3." in shown.out


def test_divergence_from_a_saved_run(command, folder, text, tmp_path) -> None:
    words = ("eval", "kld", folder, "--against", folder, "--text", text, "--context", 64)
    file = tmp_path / "full.logits"
    shown = command(*words, "--limit-tokens", 300, "--save", file)
    assert shown.code == 0 and file.exists(), shown.err
    assert shown.out.startswith("Mean KLD:    0.0000") and "100.00 ± 0.00 %" in shown.out
    got = command(*words, "--limit-tokens", 300, "--logits", file, "--json")
    found = json.loads(got.out)
    assert got.err == "" and found["kld_p99_9"] < 1e-4 and found["tokens"] == 300
    other = command(*words, "--limit-tokens", 200, "--logits", file)
    assert other.code == 2 and "does not match: its tokens is 300, needed: 200" in other.err
    both = command(*words, "--logits", file, "--save", file)
    assert both.code == 2 and "save cannot be combined with logits" in both.err


def test_another_full_model(command, folder, speaking, text, tmp_path) -> None:
    stranger = tiny_folder(tmp_path / "other", None, tiny_tensors(seed=1))
    words = ("eval", "kld", folder, "--text", text, "--context", 64, "--limit-tokens", 100)
    file = tmp_path / "full.logits"
    assert command(*words, "--against", folder, "--save", file).code == 0
    shown = command(*words, "--against", stranger, "--logits", file)
    assert shown.code == 2 and "is of another model" in shown.err
    shown = command(*words, "--against", "stories")
    last = shown.err.splitlines()[-1]
    assert shown.code == 2 and "tokens, the model one of 483" in last, shown.err


def test_the_default_text_is_wikitext(command, folder, data) -> None:
    assert data("text-wikitext2/wiki.test.raw").exists()
    shown = command("eval", "ppl", folder, "--context", 64, "--limit-tokens", 300)
    assert shown.code == 0 and "wiki.test.raw, SHA-256 173c87a53759e020" in shown.out, shown.err


@pytest.fixture
def broken(tmp_path) -> Path:
    """The tiny model with NaN in one row of a matrix."""
    tensors = tiny_tensors()
    name = "model.layers.1.mlp.up_proj.weight"
    kind, shape, raw = tensors[name]
    values = np.frombuffer(raw, np.float32).reshape(shape).copy()
    values[3] = np.nan
    tensors[name] = kind, shape, values.tobytes()
    return tiny_folder(tmp_path / "broken", None, tensors)


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("way", ["ppl", "kld", "against", "stamp"])
def test_logits_that_are_not_finite(command, text, tmp_path, broken, way, activations) -> None:
    sound = tiny_folder(tmp_path / "sound")
    words = {
        "ppl": ("ppl", broken),
        "kld": ("kld", broken, "--against", sound),
        "against": ("kld", sound, "--against", broken, "--save", tmp_path / "rows"),
        "stamp": ("stamp", broken, "--against", sound),
    }[way]
    options = ("--text", text, "--context", 64, "--limit-tokens", 200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = command("eval", *words, *options, "--activations", activations)
    assert shown.code == 2 and shown.out == ""
    assert shown.err.splitlines()[-1] == (
        f"error: model = '{broken}' gives logits that are not finite; "
        "flyweight check MODEL looks for broken weights"
    )
    assert not list(tmp_path.glob("rows*"))
