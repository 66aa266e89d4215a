"""Every vocabulary of the corpora and of tests/data/text/golden, each in every form it is there in,
with the texts and ids that are known of it.

`UNTESTABLE` are cases whose vocabulary is not there, `ASIDE` files that are no vocabulary of ours;
a file in neither list and of no source fails `test_every_file_is_accounted_for`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.weights.gguf import read_gguf

Data = Callable[[str], Path]
GOLDEN = Path(__file__).parents[1] / "data" / "text" / "golden"
SEPARATOR = "\n__ggml_vocab_test__\n"
GGML = "tokenizers-ggml-vocab/ggml-vocab-{}.gguf"
PUBLISHED, OURS = 47, len(json.loads((GOLDEN / "ids.json").read_text("utf-8"))["texts"])

UNTESTABLE = {"command-r", "mpt", "refact", "chameleon", "roberta-bpe"}
ASIDE = {
    "tokenizer-llama2/tokenizer.bin": "llama2.c's own form of tokenizer.model",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A vocabulary in one form: `files` it is made of, `ids` that name its cases, published ones
    (`llama-spm`) or ours (`*bpe`), and whether those read special tokens and have BOS added.
    """

    name: str
    files: tuple[str, ...]
    ids: str
    form: str = "file"
    special: bool = False
    model_type: str = ""  # what a config.json next to the files says

    @property
    def count(self) -> int:
        if not self.ids.startswith("*"):
            return PUBLISHED
        return OURS if self.files[0].startswith("golden/") else PUBLISHED + OURS

    def load(self, data: Data, tmp: Path) -> Tokenizer:
        paths = [GOLDEN / f[7:] if f.startswith("golden/") else data(f) for f in self.files]
        if self.form == "gguf":
            return load_tokenizer(read_gguf(paths[0]).metadata)
        if self.form == "metadata":
            return load_tokenizer(_metadata(paths[0]))
        if self.form == "folder":
            return load_tokenizer(self._folder(paths, tmp))
        return load_tokenizer(paths[0])

    def cases(self, data: Data) -> list[tuple[str, list[int]]]:
        """Texts and their ids."""
        if not self.ids.startswith("*"):
            lines = data(GGML.format(self.ids) + ".out").read_text("utf-8").split("\n")
            ids = [[int(word) for word in line.split()] for line in lines[:PUBLISHED]]
            return list(zip(published(data, self.ids), ids, strict=True))
        known = json.loads((GOLDEN / "ids.json").read_text("utf-8"))
        found = known[self.ids[1:]]
        ours = list(zip(known["texts"], found["ours"], strict=True))
        if "published" not in found:
            return ours
        return [*zip(published(data, "gpt-2"), found["published"], strict=True), *ours]

    def _folder(self, paths: list[Path], tmp: Path) -> Path:
        folder = tmp / self.name.replace("/", "-")
        folder.mkdir()
        for path in paths:
            name = path.name.partition("_")[2] if path.name.endswith("_config.json") else path.name
            (folder / name).symlink_to(path)
        if self.model_type:
            (folder / "config.json").write_text(json.dumps({"model_type": self.model_type}))
        return folder


def texts_back(source: Source) -> list[tuple[list[int], str]]:
    """Ids of our texts and what the program that made them reads them as."""
    known = json.loads((GOLDEN / "ids.json").read_text("utf-8")).get(source.ids[1:], {})
    return list(zip(known["ours"], known["text"], strict=True)) if "text" in known else []


def published(data: Data, name: str) -> list[str]:
    """The texts of a published case file."""
    texts = data(GGML.format(name) + ".inp").read_text("utf-8").split(SEPARATOR)
    assert len(texts) == PUBLISHED
    return texts


def _metadata(path: Path) -> dict[str, Any]:
    metadata = json.loads(path.read_text("utf-8"))
    key = "tokenizer.ggml.precompiled_charsmap"
    return metadata | {
        key: np.array(metadata[key], np.uint8),
        "tokenizer.ggml.add_eos_token": False,
    }


def _merges(folder: str) -> tuple[str, str]:
    return f"{folder}/vocab.json", f"{folder}/merges.txt"


FOLDER = "tokenizer-qwen2"
QWEN = _merges(FOLDER)
GGUF = ("llama-spm", "phi-3", "gpt-2", "falcon", "starcoder", "deepseek-llm", "deepseek-coder")
MISTRAL = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
)
RANKS = ("cl100k_base.tiktoken", "o200k_base.tiktoken")
JSON = "tokenizers-hf-json/{}/tokenizer.json"
SOURCES = [
    *(Source(f"gguf/{name}", (GGML.format(name),), name, "gguf") for name in GGUF),
    Source("json/phi-3", (JSON.format("phi-3-mini"),), "phi-3"),
    Source("json/falcon", (JSON.format("falcon"),), "falcon"),
    Source("json/phi-2", (JSON.format("phi-2"),), "*phi-2 special", special=True),
    Source("sentencepiece/llama2", ("tokenizer-llama2/tokenizer.model",), "llama-spm"),
    *(Source(f"sentencepiece/{n}", (f"tokenizers-mistral/{n}",), f"*{n}") for n in MISTRAL),
    Source("tiktoken/llama3", ("tokenizer-llama3/tokenizer.model",), "llama-bpe"),
    *(Source(f"tiktoken/{n}", (f"tokenizers-tiktoken/{n}",), f"*{n}") for n in RANKS),
    Source("merges/llama3", _merges("tokenizer-llama3"), "llama-bpe", "folder", False, "llama"),
    Source("merges/gpt-2", _merges("tokenizer-gpt2"), "gpt-2", "folder", False, "gpt2"),
    Source("merges/qwen2.5", (*QWEN, f"{FOLDER}/qwen2.5_tokenizer_config.json"), "qwen2", "folder"),
    Source(
        "merges/qwen3",
        (*QWEN, f"{FOLDER}/qwen3_tokenizer_config.json"),
        "deepseek-r1-qwen",
        "folder",
    ),
    Source("small/unigram", ("golden/unigram.model",), "*unigram"),
    Source("small/unigram gguf", ("golden/unigram.json",), "*unigram", "metadata"),
    Source("small/unigram bytes", ("golden/unigram-bytes.model",), "*unigram-bytes"),
    Source("small/bpe", ("golden/bpe.model",), "*bpe"),
    Source("small/bpe bytes", ("golden/bpe-bytes.model",), "*bpe-bytes"),
    Source("small/tekken", ("golden/tekken.json",), "*tekken"),
    Source("small/wordpiece", ("golden/vocab.txt",), "*wordpiece special", special=True),
]
