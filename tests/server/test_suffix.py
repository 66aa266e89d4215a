"""`suffix`: a model that fills holes is given one, others refuse."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from http_server import Running, started

MODEL = Path(__file__).parents[1] / "data" / "models" / "qwen2"
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Random weights under a vocabulary of bytes and Qwen's marks."""
    folder = tmp_path_factory.mktemp("coder")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / name, folder)
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = Tokenizer(BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    vocabulary.pre_tokenizer = ByteLevel(add_prefix_space=False)
    vocabulary.decoder = Bytes()
    vocabulary.add_special_tokens(MARKS)
    vocabulary.save(str(folder / "tokenizer.json"))
    with started(str(folder)) as running:
        yield running


def test_a_hole_is_filled(coder: Running) -> None:
    body = {"prompt": "def f(x):", "suffix": " return y", "max_tokens": 6, "temperature": 0}
    got = coder.post("/v1/completions", body)
    assert got.status == 200, got.body
    written = "<|fim_prefix|>def f(x):<|fim_suffix|> return y<|fim_middle|>"
    same = coder.post("/v1/completions", {"prompt": written, "max_tokens": 6, "temperature": 0})
    assert got.json["choices"][0]["text"] == same.json["choices"][0]["text"]
    assert got.json["usage"]["prompt_tokens"] == same.json["usage"]["prompt_tokens"]
    ids = coder.post("/tokenize", {"prompt": "def f(x):"}).json["tokens"]
    as_ids = coder.post("/v1/completions", {**body, "prompt": ids}).json
    assert as_ids["choices"] == got.json["choices"]


def test_other_vocabularies_refuse(server: Running) -> None:
    got = server.post("/v1/completions", {"prompt": "def f(x):", "suffix": " return y"})
    assert got.status == 400 and got.json["error"]["param"] == "suffix"
    assert server.post("/v1/completions", {"prompt": "x", "suffix": ""}).status == 200
