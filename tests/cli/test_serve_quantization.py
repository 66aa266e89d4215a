"""`--quantization` as an object, in a file of options: camelCase, contradictions, and methods that
are not served.
"""

import json
from pathlib import Path

import pytest

from flyweight.cli.serve.choices import ServeChoice, choose
from flyweight.cli.serve.words import read
from flyweight.errors import Refusals

# The founding documents' own file.
SEED = """\
{
  "quantization": {
    "type": "int4",
    "method": "GPTQ",
    "groupSize": 128,
    "actOrder": true,
    "desc_act": false
  }
}
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def chosen(*words: object) -> ServeChoice:
    return choose(read([str(word) for word in words]))


def refused(tmp_path: Path, text: str) -> tuple[str, ...]:
    """The refusals of a file of options, a line each."""
    with pytest.raises(Refusals) as caught:
        chosen("--config", written(tmp_path / "quantization.json", text))
    return caught.value.lines


def test_the_founding_documents_file_is_refused_for_what_is_wrong_with_it(tmp_path: Path) -> None:
    (contradiction,) = refused(tmp_path, SEED)
    assert contradiction.startswith(
        "--quantization: actOrder = true and desc_act = false contradict each other: both set "
        "desc_act; give one of them"
    )


@pytest.mark.parametrize("order", [{}, {"actOrder": True}, {"descAct": True, "act_order": True}])
def test_without_the_contradiction_the_files_must_be_so(tmp_path: Path, order: dict) -> None:
    given = {"type": "int8", "quantMethod": "AWQ", "groupSize": 128, "sym": None, **order}
    file = written(tmp_path / "a.json", json.dumps({"quantization": given}))
    expected = {"method": "awq", "bits": 8, "group_size": 128}
    found = chosen("--config", file).settings.quantization
    assert found == (expected | {"desc_act": True} if order else expected)


def test_unknown_methods_and_two_numbers_of_bits_are_refused(tmp_path: Path) -> None:
    (said,) = refused(tmp_path, json.dumps({"quantization": {"method": "gptqq"}}))
    assert "'gptqq' is not supported (did you mean 'gptq'?)" in said
    given = {"method": "gptq", "type": "int4", "bits": 8}
    (said,) = refused(tmp_path, json.dumps({"quantization": given}))
    assert "type of 4 bits and bits = 8 contradict each other" in said


@pytest.mark.parametrize(
    ("word", "methods"),
    [
        ("INT8", "compressed-tensors, bitsandbytes, torchao, gptq"),
        ("nf4", "bitsandbytes"),
        ("w8a8", "compressed-tensors"),
    ],
)
def test_names_of_numbers_lead_to_methods(word: str, methods: str) -> None:
    with pytest.raises(
        Refusals, match=rf"= '{word}' is not supported \(methods of .*: {methods}\);"
    ):
        chosen("-q", word)


@pytest.mark.parametrize("word", ["GPTQ", "FP8", "Awq"])
def test_methods_may_be_in_capitals(word: str) -> None:
    assert chosen("-q", word).settings.quantization == {"method": word.lower()}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "gguf", "grupSize": 128}, "'grup_size' (did you mean 'group_size'?) is unknow"),
        (
            {"method": "gguf", "groupSize": "128"},
            "groupSize = '128' is not valid; allowed: a whole",
        ),
        ({"method": "gguf", "actOrder": 1}, "actOrder = 1 is not valid; allowed: true or false"),
        ({"method": "gguf", "bits": True}, "bits = true is not valid; allowed: a whole number"),
        ({"method": "gguf", "groupSize": 128, "group_size": 64}, "contradict each other"),
        ({"type": "int4"}, "method is missing; allowed: gguf, none"),
        ({"method": None}, "method is missing; allowed: gguf, none"),
        ({"method": 4}, "method = 4 is not valid; allowed: text, as GPTQ"),
    ],
)
def test_each_key_is_read_strictly(tmp_path: Path, given: dict, says: str) -> None:
    (said,) = refused(tmp_path, json.dumps({"quantization": given}))
    assert says in said


def test_what_can_be_supported_is_taken(tmp_path: Path) -> None:
    for words in (
        ("--quantization", '{"method": "GGUF"}'),
        ("--config", written(tmp_path / "a.json", '{"quantization": {"method": "gguf"}}')),
        ("--config", written(tmp_path / "b.json", '{"quantization": "gguf"}')),
    ):
        assert chosen(*words).settings.load_format == "gguf"
    assert chosen("--quantization", '{"method": "none"}').settings.load_format == "auto"


def test_names_of_options_may_be_in_camel_case(tmp_path: Path) -> None:
    file = written(tmp_path / "c.json", '{"maxModelLen": 4096, "blockSize": 64, "port": 81}')
    choice = chosen("--config", file)
    settings = choice.settings
    assert (settings.max_model_len, settings.block_size, choice.server.port) == (4096, 64, 81)


@pytest.mark.parametrize("words", [[], ["-q", "bitsandbytes"]])
def test_the_load_format_of_bitsandbytes(words: list[str]) -> None:
    """As vLLM's documents write it."""
    found = chosen(*words, "--load-format", "bitsandbytes").settings
    assert found.load_format == "safetensors"
    assert found.quantization == {"method": "bitsandbytes"}
