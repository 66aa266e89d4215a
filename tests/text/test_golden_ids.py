"""Published ids of real vocabularies: 47 texts each, from GGUF metadata and from tokenizer.json."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streaming import check
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from flyweight.text.gguf_bpe import PRE_TOKENIZERS
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.weights.gguf import read_gguf

Data = Callable[[str], Path]
SEPARATOR = "\n__ggml_vocab_test__\n"
GGUF = ["llama-spm", "phi-3", "gpt-2", "falcon", "starcoder", "deepseek-llm", "deepseek-coder"]
MERGES = [
    ("tokenizer-llama3", "llama-bpe", "llama-bpe"),
    ("tokenizer-qwen2", "qwen2", "qwen2"),
    ("tokenizer-qwen2", "deepseek-r1-qwen", "deepseek-r1-qwen"),
    ("tokenizer-gpt2", "gpt-2", "gpt-2"),
]


def gguf_tokenizer(data: Data, name: str) -> Tokenizer:
    return load_tokenizer(read_gguf(data(f"tokenizers-ggml-vocab/ggml-vocab-{name}.gguf")).metadata)


def check_golden(tokenizer: Tokenizer, data: Data, name: str) -> None:
    stem = f"tokenizers-ggml-vocab/ggml-vocab-{name}.gguf"
    texts = data(stem + ".inp").read_text(encoding="utf-8").split(SEPARATOR)
    lines = data(stem + ".out").read_text(encoding="utf-8").split("\n")
    assert len(texts) == 47
    for text, line in zip(texts, lines, strict=False):
        ids = [int(word) for word in line.split()]
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, repr(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", GGUF)
def test_gguf(data: Data, name: str) -> None:
    check_golden(gguf_tokenizer(data, name), data, name)


def read_merges(data: Data, folder: str) -> tuple[dict[str, int], list[str]]:
    vocabulary = json.loads(data(f"{folder}/vocab.json").read_text(encoding="utf-8"))
    lines = data(f"{folder}/merges.txt").read_text(encoding="utf-8").split("\n")
    return vocabulary, [line for line in lines if line and not line.startswith("#version")]


@pytest.mark.parametrize(("folder", "pre", "name"), MERGES)
def test_vocabulary_and_merges_as_gguf(data: Data, folder: str, pre: str, name: str) -> None:
    vocabulary, merges = read_merges(data, folder)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "tokenizer.ggml.merges": merges,
    }
    check_golden(load_tokenizer(metadata), data, name)


@pytest.mark.parametrize(("folder", "pre", "name"), MERGES[:2])
def test_vocabulary_and_merges_as_json(
    data: Data, tmp_path: Path, folder: str, pre: str, name: str
) -> None:
    vocabulary, merges = read_merges(data, folder)
    rules = PRE_TOKENIZERS[pre]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    library = Library(models.BPE(vocabulary, pairs, ignore_merges=rules.ignore_merges))
    library.normalizer = normalizers.NFC() if rules.nfc else None
    split = pre_tokenizers.Split(Regex(rules.patterns[0]), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    library.decoder = decoders.ByteLevel()
    library.save(str(tmp_path / "tokenizer.json"))
    if pre == "qwen2":  # its added tokens are in the configuration alone
        config = data(f"{folder}/qwen3_tokenizer_config.json").read_text(encoding="utf-8")
        (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    check_golden(tokenizer, data, name)
    if pre == "qwen2":
        assert tokenizer.eos_ids == (151645,) and tokenizer.chat_template
        assert tokenizer.encode("<|im_start|>user") == [151644, 872]


@pytest.mark.parametrize(("folder", "name"), [("phi-3-mini", "phi-3"), ("falcon", "falcon")])
def test_tokenizer_json(data: Data, folder: str, name: str) -> None:
    tokenizer = load_tokenizer(data(f"tokenizers-hf-json/{folder}/tokenizer.json").parent)
    check_golden(tokenizer, data, name)


def test_stories_gguf(data: Data) -> None:
    tokenizer = load_tokenizer(read_gguf(data("stories260k/stories260K-f32.gguf")).metadata)
    assert tokenizer.encode("Once upon a time") == [1, 403, 407, 261, 378]


def test_a_megabyte_is_encoded_in_seconds(data: Data) -> None:
    tokenizer = gguf_tokenizer(data, "llama-spm")
    text = data("text-wikitext2/wiki.test.raw").read_text(encoding="utf-8")[:1_000_000]
    start = time.process_time()
    ids = tokenizer.encode(text)
    assert time.process_time() - start < 3
    assert tokenizer.decode(ids) == text


REAL = ["llama-spm", "gpt-2", "json:phi-3-mini", "json:phi-2"]


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest, data: Data) -> Tokenizer:
    kind, _, name = request.param.rpartition(":")
    if kind:
        return load_tokenizer(data(f"tokenizers-hf-json/{name}/tokenizer.json").parent)
    return gguf_tokenizer(data, name)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(sample=st.data())
def test_streaming_with_real_vocabularies(real: Tokenizer, sample: st.DataObject) -> None:
    check(real, sample)
