"""`suffix` and /infill: a model that fills holes is given one, others refuse."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from http_server import Running, started

MODEL = Path(__file__).parents[1] / "data" / "models" / "qwen2"
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>",
         "<|file_sep|>"]  # fmt: skip
HOLE = {"input_prefix": "def f(x):\n", "prompt": "    y =", "input_suffix": "\n    return y"}
AROUND = "<|fim_prefix|>def f(x):\n    y =<|fim_suffix|>\n    return y<|fim_middle|>"


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


def infilled(coder: Running, **more: object) -> dict[str, Any]:
    got = coder.post("/infill", {**HOLE, "n_predict": 6, "temperature": 0, **more})
    assert got.status == 200, got.body
    found: dict[str, Any] = got.json
    return found


def test_the_text_at_a_cursor(coder: Running) -> None:
    """llama-server's: the beginning of the line is the end of what stands before the hole."""
    same = {"prompt": AROUND, "n_predict": 6, "temperature": 0}
    plain = coder.post("/completion", same).json
    got = infilled(coder)
    assert got["prompt"] == AROUND and got["content"] == plain["content"]
    assert got["tokens_evaluated"] == plain["tokens_evaluated"]
    events = coder.post(
        "/infill", {**HOLE, "n_predict": 6, "temperature": 0, "stream": True}
    ).events
    assert "".join(event["content"] for event in events) == plain["content"]


def test_other_files_stand_before_it(coder: Running) -> None:
    extra = [{"filename": "a.py", "text": "A = 1"}, {"text": "B = <|fim_middle|>", "time": 7}]
    found = infilled(coder, input_extra=extra)["prompt"]
    files = "<|file_sep|>a.py\nA = 1<|file_sep|>tmp\nB = <|fim_middle|>"
    assert found == f"<|repo_name|>myproject\n{files}<|file_sep|>filename\n{AROUND}"
    marked = coder.post("/tokenize", {"prompt": found}).json["count"]
    assert infilled(coder, input_extra=extra)["tokens_evaluated"] > marked  # a mark that is text
    longest = coder.get("/props").json["default_generation_settings"]["n_ctx"]
    long = [{"filename": "old", "text": "x" * longest}, {"filename": "new", "text": "y = 2"}]
    found = infilled(coder, input_extra=long)["prompt"]  # the last ones come first
    assert "new\ny = 2" in found and "xx" not in found


def test_what_editors_send_is_taken(coder: Running) -> None:
    """llama.vim's body: what tunes llama.cpp's own sampler and clock is listed as ignored."""
    more = {"n_indent": 4, "top_k": 40, "top_p": 0.99, "samplers": ["top_k", "top_p", "infill"],
            "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
            "response_fields": ["content"], "id_slot": -1, "input_extra": []}  # fmt: skip
    got = coder.post("/infill", {**HOLE, "n_predict": 3, **more})
    assert got.status == 200, got.body
    assert set(got.headers["x-ignored-params"].split(", ")) == {
        "samplers", "n_indent", "t_max_prompt_ms", "t_max_predict_ms", "response_fields",
    }  # fmt: skip


def test_an_editor_computes_other_files_ahead(coder: Running) -> None:
    """llama.vim sends this while its user is idle, with nothing around the cursor."""
    extra = [{"filename": "a.py", "text": "A = 1\n" * 20, "time": [1, 2]}]
    idle = {"input_prefix": "", "input_suffix": "", "input_extra": extra, "prompt": "",
            "n_predict": 0, "temperature": 0.0, "stream": False, "samplers": [],
            "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1,
            "response_fields": [""]}  # fmt: skip
    got = coder.post("/infill", idle)
    assert got.status == 200, got.body
    reported = {name: got.json[name] for name in ("content", "tokens_predicted", "stop_type")}
    assert reported == {"content": "", "tokens_predicted": 0, "stop_type": "limit"}
    assert got.json["generation_settings"]["n_predict"] == 0
    assert infilled(coder, input_extra=extra)["tokens_cached"] > 0
    streamed = coder.post("/completion", {"prompt": AROUND, "n_predict": 0, "stream": True}).events
    assert [event["content"] for event in streamed] == [""]
    assert coder.post("/completion", {"prompt": AROUND, "n_predict": -2}).status == 400


def test_holes_that_cannot_be_filled(coder: Running, server: Running) -> None:
    got = server.post("/infill", HOLE)
    assert got.status == 400 and got.json["error"]["param"] == "input_suffix"
    got = coder.post("/infill", {**HOLE, "input_suffix": "y" * 100_000})
    assert got.status == 400 and "input_suffix" in got.json["error"]["message"]
    got = coder.post("/infill", {"prompt": "x"})
    assert got.status == 400 and got.json["error"]["param"] == "input_prefix"
