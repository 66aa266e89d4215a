"""Fuzz target: a tokenizer of any kind, loaded, and a text taken there and back.

The first byte of an input says which file the rest of it is.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from filewriters import write_gguf
from flyweight.errors import FlyweightError
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.weights.gguf import read_gguf

FIXTURES = Path(__file__).parents[1] / "tests" / "data" / "text"
GGUF, ALONE = 0, 4  # GGUF metadata; a tokenizer.json without companions
PARTS = {1: "tokenizer.json", 2: "tokenizer_config.json", 3: "special_tokens_map.json"}
TEXT = "Once <|start|> upon\u2581 12345 a\u0301 \U0001f600\n\ud800 the</s>"


class Target:
    COVERED = ("text/gguf*.py", "text/hf.py", "text/library.py", "text/streams.py")

    def __init__(self, folder: Path) -> None:
        self.folder, self.gguf = folder, folder / "model.gguf"
        honest = {p.name: p.read_bytes() for p in (FIXTURES / "tiny-bpe").iterdir()}
        self.honest = {"special_tokens_map.json": b'{"eos_token": "<|end|>"}'} | honest

    def seeds(self) -> Iterator[bytes]:
        for code, name in PARTS.items():
            yield bytes([code]) + self.honest[name]
        yield bytes([ALONE]) + json.dumps(small_json()).encode()
        for metadata in (spm(), bpe()):
            yield bytes([GGUF]) + write_gguf(self.gguf, metadata, {}).read_bytes()

    def execute(self, data: bytes) -> bool:
        """Whether it is a tokenizer."""
        code, rest = data[0] if data else GGUF, data[1:]
        try:
            use(self.load(code, rest))
            return True
        except FlyweightError:
            return False

    def load(self, code: int, data: bytes) -> Tokenizer:
        if code in PARTS:
            return self._folder(self.honest | {PARTS[code]: data})
        if code == ALONE:
            return self._folder(dict.fromkeys(self.honest, b"{}") | {"tokenizer.json": data})
        self.gguf.write_bytes(data)
        file = read_gguf(self.gguf)
        file.file.close()
        return load_tokenizer(file.metadata)

    def _folder(self, files: dict[str, bytes]) -> Tokenizer:
        for path, content in files.items():
            (self.folder / path).write_bytes(content)
        return load_tokenizer(self.folder)


def use(tokenizer: Tokenizer) -> None:
    """What a request does with it."""
    for parse_special in (True, False):
        ids = tokenizer.encode(TEXT, parse_special=parse_special)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
    some = [*ids[:20], 0, tokenizer.vocab_size - 1]
    tokenizer.decode(some)
    stream = tokenizer.stream(some[:2])
    for i in some:
        stream.push(i)
        tokenizer.token_bytes(i)


def spm() -> dict[str, object]:
    """The committed SentencePiece vocabulary without most of its pieces."""
    full = json.loads((FIXTURES / "tiny-spm.json").read_text(encoding="utf-8"))
    kept = [*range(8), *range(259, 280)]
    pieces = [full["tokenizer.ggml.tokens"][i] for i in kept]
    types = np.array([full["tokenizer.ggml.token_type"][i] for i in kept], np.int32)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.arange(len(kept), dtype=np.float32),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }


def bpe() -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["t", "h", "e", "th", "the", "<s>", "\u0120"],
        "tokenizer.ggml.token_type": np.array([1, 1, 1, 1, 1, 3, 4], np.int32),
        "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.bos_token_id": 5,
        "tokenizer.chat_template": "{{ messages }}",
    }


def small_json() -> dict[str, object]:
    """A tokenizer.json as small as one can be, of the other kind of decoder."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    decoders = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Prepend", "prepend": "\u2581"},
        "model": model | {"byte_fallback": True},
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
