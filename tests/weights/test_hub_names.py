"""Names of models on the Hub, and which files of a repository they mean."""

import pytest

from flyweight.errors import CheckpointError
from flyweight.weights.hub import names
from flyweight.weights.hub.download import check_name
from flyweight.weights.hub.names import HubName, choose, find_label, parse_hub_name

MIB = 1 << 20


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("org/name", HubName("org/name")),
        ("org/name:Q4_K_M", HubName("org/name", "Q4_K_M")),
        ("org/name:dir/file.gguf", HubName("org/name", "dir/file.gguf")),
        ("org/name@v1.0", HubName("org/name", "", "v1.0")),
        ("org/name@refs/pr/7:q8_0", HubName("org/name", "q8_0", "refs/pr/7")),
        ("org/name:q8_0@main", HubName("org/name", "q8_0", "main")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("hf.co/org/name:Q8_0", HubName("org/name", "Q8_0")),
        ("org/Name-7B-v0.1-GGUF", HubName("org/Name-7B-v0.1-GGUF")),
        ("stories", None),
        ("./org/name", None),
        ("/org/name", None),
        ("~/org/name", None),
        ("a/b/c", None),
        ("models/x.gguf", None),
        ("models/x.safetensors", None),
        ("org/na me", None),
        ("org/..", None),
        ("../name", None),
        ("org/name:", None),
        ("org/name:a\\b", None),
        ("org/" + "x" * 97, None),
        ("", None),
    ],
)
def test_names(text: str, wanted: HubName | None) -> None:
    assert parse_hub_name(text) == wanted


@pytest.mark.parametrize("revision", ["../../x", "a/../b", "-x", "a b", "x" * 300])
def test_revisions_that_lead_elsewhere(revision: str) -> None:
    with pytest.raises(CheckpointError, match=r"revision = .* is not valid"):
        parse_hub_name("org/name", revision)


@pytest.mark.parametrize(
    "stem, wanted",
    [
        ("Model-Q4_K_M", "Q4_K_M"),
        ("model.q4_k_m", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0", "Q8_0"),
        ("Model-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("Model-IQ2_XXS", "IQ2_XXS"),
        ("BF16/Model", "BF16"),
        ("Model-BF16", "BF16"),
        ("Qwen3-0.6B", ""),
        ("Q8_0/Model-Q4_0", "Q4_0"),
        ("gpt-oss-20b-MXFP4", "MXFP4"),
    ],
)
def test_labels(stem: str, wanted: str) -> None:
    assert find_label(stem) == wanted


def sizes(**files: int) -> dict[str, int]:
    return {f"M-{name}.gguf": size * MIB for name, size in files.items()}


def test_the_choice_goes_by_preference_and_room() -> None:
    name = HubName("org/m")
    files = sizes(Q8_0=80, Q4_K_M=45, Q4_0=40, F16=160, IQ1_S=9)
    assert choose(name, files).weights == ("M-Q4_K_M.gguf",)
    assert choose(name, files, 44 * MIB).weights == ("M-Q4_0.gguf",)
    with pytest.raises(CheckpointError, match=r"fits the 30.0 MiB .* smallest is org/m:Q4_0 of 40"):
        choose(name, files, 30 * MIB)
    assert choose(name, sizes(Q8_0=80, F16=160)).what == "Q8_0"
    assert choose(name, sizes(IQ1_S=9)).weights == ("M-IQ1_S.gguf",)  # says itself what is wrong
    assert choose(name, {"whatever.gguf": 1}).what == "GGUF"


def test_safetensors_come_first_where_there_is_a_config() -> None:
    both = {"config.json": 1, "model.safetensors": 9, "tokenizer.json": 1, **sizes(Q8_0=80)}
    chosen = choose(HubName("org/m"), both)
    assert chosen.weights == ("model.safetensors",)
    assert chosen.companions == ("config.json", "tokenizer.json")
    assert choose(HubName("org/m", "q8_0"), both).weights == ("M-Q8_0.gguf",)
    assert choose(HubName("org/m", "safetensors"), both).weights == ("model.safetensors",)
    del both["config.json"]
    assert choose(HubName("org/m"), both).weights == ("M-Q8_0.gguf",)


@pytest.mark.parametrize(
    "there, wanted",
    [
        ("tokenizer.json tokenizer.model vocab.json merges.txt", "tokenizer.json"),
        ("tokenizer.model vocab.json merges.txt", "tokenizer.model"),
        ("qwen.tiktoken other.json", "qwen.tiktoken"),
        ("tokenizer.model.v3 vocab.json", "tokenizer.model.v3"),
        ("vocab.json merges.txt vocab.txt", "merges.txt vocab.json"),
        ("vocab.json vocab.txt sub/tokenizer.json", "vocab.txt"),
        ("additional_chat_templates/t.jinja x.txt", "additional_chat_templates/t.jinja"),
    ],
)
def test_one_vocabulary_is_fetched(there: str, wanted: str) -> None:
    assert names.list_companions(there.split()) == tuple(wanted.split())


def test_a_wanted_quantisation() -> None:
    files = sizes(Q4_K_M=1, IQ4_K_M=1, BF16=2, F16=2, IQ2_XXS=1)
    for want in ("Q4_K_M", "q4_k_m", "m-q4_k_m.gguf", "M-Q4_K_M.gguf"):
        assert choose(HubName("org/m", want), files).weights == ("M-Q4_K_M.gguf",)
    assert choose(HubName("org/m", "f16"), files).weights == ("M-F16.gguf",)
    with pytest.raises(CheckpointError, match=r"'Q4_K_X' \(did you mean 'Q4_K_M'\?\); it has "):
        choose(HubName("org/m", "Q4_K_X"), files)


def test_a_quantisation_we_do_not_read_is_refused_before_it_is_fetched(monkeypatch) -> None:
    monkeypatch.setattr(names, "FORMATS", {"q8_0": None})
    with pytest.raises(CheckpointError, match="Q4_K_M is not read yet; readable here: Q8_0"):
        choose(HubName("org/m", "q4_k_m"), sizes(Q4_K_M=1, Q8_0=2))
    assert choose(HubName("org/m"), sizes(Q4_K_M=1, Q8_0=2)).what == "Q8_0"


def test_parts_belong_together() -> None:
    parts = {f"d/M-Q8_0-0000{i}-of-00003.gguf": MIB for i in (1, 2, 3)}
    chosen = choose(HubName("org/m"), parts)
    assert chosen.weights == tuple(parts) and chosen.what == "Q8_0"
    assert choose(HubName("org/m", "M-Q8_0-00002-of-00003.gguf"), parts).weights == tuple(parts)
    del parts["d/M-Q8_0-00002-of-00003.gguf"]
    with pytest.raises(CheckpointError, match="and no GGUF files"):
        choose(HubName("org/m"), parts)


def test_what_is_no_model_is_left_out() -> None:
    files = sizes(Q8_0=1) | {"mmproj-F16.gguf": 1, "imatrix.gguf": 1, "ggml-vocab-x.gguf": 1}
    assert choose(HubName("org/m"), files).weights == ("M-Q8_0.gguf",)
    with pytest.raises(CheckpointError, match=r"'model\.bin' is all there is: it is not read"):
        choose(HubName("org/m"), {"config.json": 1, "model.bin": 1})


@pytest.mark.parametrize("file", ["../a", "/a", "a/../b", "a\\b", "a//b", "./a", "a\x1b", "a\n"])
def test_names_of_files_that_lead_elsewhere(file: str) -> None:
    check_name(HubName("org/m"), "dir/a b-Q4_0.gguf")
    with pytest.raises(CheckpointError, match="not a plain file name"):
        check_name(HubName("org/m"), file)


def test_pytorchs_files_are_taken_where_there_is_nothing_else() -> None:
    old = {"config.json": 1, "tokenizer.json": 1, "pytorch_model.bin": 5, "tf_model.h5": 5}
    words = ("config.json", "tokenizer.json")
    chosen = choose(HubName("org/m"), old)
    assert (chosen.weights, chosen.companions) == (("pytorch_model.bin",), words)
    safe = old | {"model.safetensors": 5}
    assert choose(HubName("org/m"), safe).weights == ("model.safetensors",)
    assert choose(HubName("org/m"), old | {"M-Q8_0.gguf": 5}).weights == ("M-Q8_0.gguf",)
    named = HubName("org/m", "pytorch_model.bin")
    assert choose(named, safe).weights == ("pytorch_model.bin",)
    parts = {f"pytorch_model-0000{i}-of-00002.bin": 5 for i in (1, 2)}
    index = {"config.json": 1, "pytorch_model.bin.index.json": 1, **parts}
    assert choose(HubName("org/m"), index).index == "pytorch_model.bin.index.json"
    for other in ("tf_model.h5", "flax_model.msgpack", "model.pt"):
        with pytest.raises(CheckpointError, match="it is not read"):
            choose(HubName("org/m"), {"config.json": 1, other: 1})


def test_quantised_repositories_bring_their_config() -> None:
    """As TheBloke published GPTQ: one file of another name, and the config in a file of its own."""
    files = dict.fromkeys(["config.json", "quantize_config.json", "tokenizer.json", "README.md"], 9)
    found = choose(HubName("org/name-GPTQ"), files | {"gptq_model-4bit-128g.safetensors": 4 * MIB})
    assert found.weights == ("gptq_model-4bit-128g.safetensors",)
    assert {"config.json", "quantize_config.json", "tokenizer.json"} == set(found.companions)
