"""The small vocabularies the text tests share, each as its file or metadata would be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers

from flyweight.text.codec import SpecialIds
from flyweight.text.hf import HfCodec
from flyweight.text.tokenizer import Tokenizer, load_tokenizer

FIXTURES = Path(__file__).parent.parent / "data" / "text"


def spm_metadata() -> dict[str, Any]:
    return dict(json.loads((FIXTURES / "tiny-spm.json").read_text(encoding="utf-8")))


def bpe_metadata() -> dict[str, Any]:
    """The committed tokenizer.json as a GGUF writer would put it."""
    content = json.loads((FIXTURES / "tiny-bpe" / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    added = content["added_tokens"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.get)
        + [entry["content"] for entry in added],
        "tokenizer.ggml.token_type": [1] * len(vocabulary)
        + [3 if entry["special"] else 4 for entry in added],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": len(vocabulary),
        "tokenizer.ggml.eos_token_id": len(vocabulary) + 1,
        "tokenizer.ggml.add_bos_token": True,
    }


def fallback_library(decoder: Any) -> Library:
    """The 512-piece vocabulary as a library BPE without merges: only its decoder matters here."""
    pieces = spm_metadata()["tokenizer.ggml.tokens"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    library = Library(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    library.decoder = decoder
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return library


def llama_decoder() -> Any:
    return decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


def metaspace_decoder() -> Any:
    return decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])


def library_tokenizer(library: Library) -> Tokenizer:
    special = frozenset({0, 1, 2})
    return Tokenizer(HfCodec(library, special, None), SpecialIds(1, 2, (2,), special_ids=special))


SMALL: dict[str, Callable[[], Tokenizer]] = {
    "spm": lambda: load_tokenizer(spm_metadata()),
    "bpe": lambda: load_tokenizer(bpe_metadata()),
    "json": lambda: load_tokenizer(FIXTURES / "tiny-bpe"),
    "fallback": lambda: library_tokenizer(fallback_library(llama_decoder())),
    "metaspace": lambda: library_tokenizer(fallback_library(metaspace_decoder())),
    "wordpiece": lambda: library_tokenizer(fallback_library(decoders.WordPiece("\u2581"))),
    "unigram": lambda: load_tokenizer(FIXTURES / "golden" / "unigram.model"),
    "unigram bytes": lambda: load_tokenizer(FIXTURES / "golden" / "unigram-bytes.model"),
    "spm file": lambda: load_tokenizer(FIXTURES / "golden" / "bpe-bytes.model"),
    "tekken": lambda: load_tokenizer(FIXTURES / "golden" / "tekken.json"),
    "words": lambda: load_tokenizer(FIXTURES / "golden" / "vocab.txt"),
    "suffix": lambda: library_tokenizer(fallback_library(decoders.BPEDecoder("e"))),
}
