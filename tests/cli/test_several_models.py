"""Several models on the command line of `serve`, and in a file."""

from pathlib import Path

import pytest

from flyweight.arguments.draft import DEFAULT
from flyweight.cli.serve.choices import choose
from flyweight.cli.serve.words import read
from flyweight.errors import ConfigError
from flyweight.server.model_options import FOREVER, ModelOptions


def choices(*words: str) -> tuple[ModelOptions, ...]:
    return choose(read(words)).models


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        choices(*words)
    return "; ".join(caught.value.lines)


def test_words_name_models() -> None:
    small, big, last = choices("small=a.gguf", "org/name:Q4_K_M", "--max-num-seqs", "2", "c.gguf")
    assert (small.names, small.settings.model) == (("small",), "a.gguf")
    assert (big.names, big.settings.model) == ((), "org/name:Q4_K_M")
    assert last.settings.model == "c.gguf"
    assert {one.settings.max_num_seqs for one in (small, big, last)} == {2}


def test_no_word_is_the_bundled_model() -> None:
    (alone,) = choices()
    assert alone.settings.model is None and alone.names == ()


def test_a_file_with_an_equals_sign_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "a=b.gguf"
    path.touch()
    (alone,) = choices(str(path))
    assert alone.settings.model == str(path)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_file_has_models_and_their_settings(tmp_path: Path) -> None:
    file = write(
        tmp_path / "models.yaml",
        """
models:
  small: a.gguf
  big:
    model: b.gguf
    weight: 70
    memory: 25%
    keep-alive: 10min
    preload: true
    max_model_len: 4k
    kv-cache-dtype: int8
""",
    )
    small, big = choices("--models-file", file, "--max-model-len", "128")
    assert small == ModelOptions(small.settings, ("small",))
    assert small.settings.max_model_len == 128 and small.keep_alive == FOREVER
    assert (big.weight, big.memory, big.keep_alive, big.preload) == (70.0, "25%", 600.0, True)
    assert big.settings.kv_cache_dtype == "int8"
    assert big.settings.max_model_len is not None and 4000 <= big.settings.max_model_len <= 4096


def test_each_model_of_a_file_shows_its_own_settings(tmp_path: Path) -> None:
    text = """
models:
  small: {model: a.gguf, max-model-len: 8k, seed: 3}
  big: {model: b.gguf, memory-limit: 1GiB}
"""
    words = ["--models-file", write(tmp_path / "models.yaml", text), "--seed", "7"]
    choice = choose(read([*words, "--gpu-memory-utilization", "0.5"]))
    small, big = [one.requests for one in choice.models]
    assert small is not None and big is not None and choice.requests == small
    assert small.of("max-model-len") == "--max-model-len 8k" and big.of("max-model-len") == DEFAULT
    share = "--gpu-memory-utilization 0.5"
    limits = [one.of("memory-limit", "gpu-memory-utilization") for one in (small, big)]
    assert limits == [share, "--memory-limit 1GiB"]
    assert [[note.feature for note in one.noted] for one in (small, big)] == [
        ["--gpu-memory-utilization"], []
    ]  # fmt: skip
    seeds = [(row.requested, row.effective) for one in (small, big)
             for row in one.plain if row.feature == "--seed"]  # fmt: skip
    assert seeds == [("--seed 3", "3"), ("--seed 7", "7")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: {}", "no models"),
        ("models: {a: {weight: 2}}", "a: no model"),
        ("models: {a: {model: x, weight: 0}}", "a: weight = 0 is out of range"),
        ("models: {a: {model: x, weight: yes}}", "a: weight = True is out of range"),
        ("models: {a: {model: x, max-model-length: 3}}", "did you mean 'max-model-len'?"),
        ("models: {a: {model: x, preload: 1}}", "a: preload = 1 is not valid; allowed: true"),
        ("models: {a: {model: x, keep-alive: soon}}", "a: keep-alive = 'soon' is not a duration"),
        ("models: {'a b': x}", "not a name"),
        ("models: [x", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    said = refused("--models-file", write(tmp_path / "models.yaml", text))
    assert words in said and "--models-file" in said


def test_two_of_one_name_are_refused() -> None:
    assert "two models are called 'a'" in refused("a=x.gguf", "a=y.gguf")


def test_one_name_for_several_is_refused() -> None:
    said = refused("a=x.gguf", "b=y.gguf", "--served-model-name", "both")
    assert "--served-model-name names one model of 2; allowed: NAME=MODEL" in said


def test_a_name_without_a_model_is_refused() -> None:
    assert "'small=': no model; allowed: NAME=MODEL" in refused("small=")


def test_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    write(file, "models: {a: a.gguf}")
    sources = choose(read(["--models-file", str(file), "--max-num-seqs", "2"])).sources
    assert sources.file == str(file) and sources.read is not None
    write(file, "models: {a: b.gguf, c: {model: c.gguf, weight: 3}}")
    first, second = sources.read()
    assert (first.names, first.settings.model) == (("a",), "b.gguf")
    assert (second.names, second.weight, second.settings.max_num_seqs) == (("c",), 3, 2)
    write(file, "models: {a: {model: a.gguf, wieght: 3}}")
    with pytest.raises(ConfigError, match="did you mean 'weight'"):
        sources.read()
    assert choose(read(["a.gguf"])).sources.read is None


def test_a_pulled_model_has_the_settings_of_all() -> None:
    words = ["small=a.gguf", "--max-num-seqs", "2", "--revision", "v1"]
    make = choose(read([*words, "--enable-lora", "--lora-modules", "one=folder"])).sources.make
    assert make is not None
    made = make("/cache/T-Q8_0.gguf", "org/T:Q8_0")
    assert made.names == ("org/T:Q8_0",) and made.settings.model == "/cache/T-Q8_0.gguf"
    assert made.settings.max_num_seqs == 2 and made.settings.revision is None
    assert made.settings.adapters == {} and made.requests is not None
    assert made.requests.of("revision", "lora-modules") == DEFAULT
    assert made.requests.of("max-num-seqs") == "--max-num-seqs 2"
