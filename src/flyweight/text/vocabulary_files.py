"""Vocabularies in the files of slow tokenizers, as GGUF metadata: SentencePiece's (tokenizer.model,
spiece.model), vocab.json with merges.txt (byte-level BPE), and vocab.txt (WordPiece).

SentencePiece's model types unigram and BPE are read, words and characters refused. Its format is
sentencepiece_model.proto, read from Protocol Buffers' wire format (every length is checked against
the message before it is used); scores, types and the map of characters are taken over unchanged.
vocab.json does not say how a text is cut; the class or the model type next to it does.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import unpack
from typing import Any

from flyweight.errors import CheckpointError, nearest
from flyweight.text.codec import SPACE
from flyweight.text.gguf import MOST_TOKENS, TokenType
from flyweight.text.ranks import Metadata
from flyweight.validation.untrusted import read_bytes, read_json, shown

MOST_BYTES = 64 << 20
PIECE, TRAINER, NORMALIZER = 1, 2, 3  # parts of the model
KINDS = {1: "t5", 2: "llama"}  # model types: unigram, BPE
OTHERS = {3: "word", 4: "character"}
# Fields of the trainer's part: token ids, and which kind of model it is.
MODEL_TYPE, SUFFIX_SPACES = 3, 24
IDS = {40: "unknown_token_id", 41: "bos_token_id", 42: "eos_token_id", 43: "padding_token_id"}
UNSAID_IDS = {40: 0, 41: 1, 42: 2, 43: -1}
# Fields of the normaliser's part.
CHARSMAP, DUMMY_PREFIX, COLLAPSE = 2, 3, 4


def is_sentencepiece(start: bytes) -> bool:
    """Whether a file begins as these do, with a piece; tiktoken's ranks begin with base64."""
    return start[:1] == bytes([PIECE << 3 | 2])


def read_sentencepiece(path: Path) -> dict[str, object]:
    """The file's vocabulary as `tokenizer.ggml.*`."""
    try:
        return _read_metadata(read_bytes(path, MOST_BYTES))
    except CheckpointError as error:
        text = str(error)
        if str(path) in text:
            raise
        raise CheckpointError(f"{path}: not a readable SentencePiece model ({text})") from None


def _read_metadata(raw: bytes) -> dict[str, object]:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    parts: dict[int, dict[int, Any]] = {TRAINER: {}, NORMALIZER: {}}
    for number, value in read_fields(raw):
        if number == PIECE:
            piece, score, kind = _read_piece(_require_message(value))
            pieces.append(piece)
            scores.append(score)
            types.append(kind)
        elif number in parts:
            parts[number].update(read_fields(_require_message(value)))
    trainer, normalizer = parts[TRAINER], parts[NORMALIZER]
    kind = trainer.get(MODEL_TYPE, 1)
    if kind not in KINDS or trainer.get(SUFFIX_SPACES):
        what = f"model type {OTHERS.get(kind, kind)}" if kind not in KINDS else "spaces as suffixes"
        raise CheckpointError(f"{what} is not supported; known: unigram, BPE, spaces as prefixes")
    found: dict[str, object] = {
        "tokenizer.ggml.model": KINDS[kind],
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_bos_token": KINDS[kind] == "llama",
        "tokenizer.ggml.add_eos_token": KINDS[kind] == "t5",
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(DUMMY_PREFIX, 1)),
        "tokenizer.ggml.remove_extra_whitespaces": bool(normalizer.get(COLLAPSE, 1)),
        "tokenizer.ggml.precompiled_charsmap": normalizer.get(CHARSMAP, b""),
    }
    for field, name in IDS.items():
        token = _to_signed(trainer.get(field, UNSAID_IDS[field]))
        if 0 <= token < len(pieces):
            found[f"tokenizer.ggml.{name}"] = token
    return found


def _read_piece(message: bytes) -> tuple[str, float, int]:
    """Spelling, score and type; SentencePiece numbers types as GGUF does."""
    part: dict[int, Any] = dict(read_fields(message))
    text, score, kind = part.get(1, b""), part.get(2, 0.0), part.get(3, TokenType.NORMAL.value)
    if not isinstance(text, bytes) or not isinstance(score, float) or not isinstance(kind, int):
        raise CheckpointError("a piece is not made of a text, a score and a type")
    try:
        piece = text.decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"the piece {text[:20]!r} is not UTF-8") from None
    spaced = kind == TokenType.USER_DEFINED  # found in a text, where a space is a space
    return (piece.replace(SPACE, " ") if spaced else piece), score, kind


def _require_message(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise CheckpointError("a part is a number, where a message was expected")
    return value


def _to_signed(value: object) -> int:
    """Numbers below zero are written as 64-bit ones."""
    number = value if isinstance(value, int) else -1
    return number - (1 << 64) if number >= 1 << 63 else number


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10  # bytes

Field = tuple[int, int | float | bytes]


def read_fields(message: bytes) -> Iterator[Field]:
    """Every field as (number, value): a whole number, a float32, or the bytes of a string or a
    message.
    """
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, at = _read_varint(message, at)
        if size is None or size > len(message) - at:
            raise CheckpointError(f"a field of kind {kind} at byte {at} does not fit the message")
        part, at = message[at : at + size], at + size
        yield number, unpack("<f", part)[0] if kind == FIXED32 else part


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(message[at : at + LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise CheckpointError(f"a number at byte {at} has no end")


GOES_ON = "##"
# Who cuts how: tokenizer classes and model types, by pre-tokenizer.
CUTS = {
    "GPT2Tokenizer": "gpt-2",
    "CodeGenTokenizer": "gpt-2",
    "RobertaTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
    "gpt2": "gpt-2",
    "phi": "gpt-2",
    "roberta": "gpt-2",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "llama": "llama-bpe",
}
BERT = {"[CLS]": "bos", "[SEP]": "seperator", "[UNK]": "unknown", "[PAD]": "padding", "[MASK]": ""}


def read_merges(directory: Path) -> Metadata:
    """vocab.json and merges.txt."""
    path = directory / "vocab.json"
    ids = read_json(path)
    if not all(isinstance(i, int) and 0 <= i < MOST_TOKENS for i in ids.values()) or not ids:
        raise CheckpointError(f"{path}: not an object of token ids")
    tokens = [""] * (1 + max(ids.values()))
    types = [TokenType.UNUSED.value] * len(tokens)
    for piece, token in ids.items():
        tokens[token], types[token] = piece, TokenType.NORMAL.value
    lines = _read_lines(directory / "merges.txt")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _cut(directory),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [m for m in lines if m and not m.startswith("#version")],
    }


def _cut(directory: Path) -> str:
    words = []
    for name, key in (("tokenizer_config.json", "tokenizer_class"), ("config.json", "model_type")):
        path = directory / name
        found = read_json(path).get(key) if path.exists() else None
        if isinstance(found, str):
            words.append(found.removesuffix("Fast"))
    pre = next((CUTS[word] for word in words if word in CUTS), None)
    if pre is None:
        hint = nearest(words[0], CUTS) if words else ""
        said = ", ".join(map(shown, words)) or "nothing"
        raise CheckpointError(
            f"{directory}: vocab.json and merges.txt, and {said} to say how texts are cut{hint}; "
            f"known tokenizer_class or model_type: {', '.join(CUTS)}"
        )
    return pre


def read_words(path: Path) -> Metadata:
    """vocab.txt: a piece a line, ## before what goes on a word."""
    pieces = _read_lines(path)
    pieces = pieces[:-1] if pieces and not pieces[-1] else pieces
    found: Metadata = {"tokenizer.ggml.model": "bert"}
    types = [TokenType.NORMAL.value] * len(pieces)
    tokens = []
    for i, piece in enumerate(pieces):
        marked = piece in BERT
        if marked:
            types[i] = TokenType.CONTROL.value
            if BERT[piece]:
                found[f"tokenizer.ggml.{BERT[piece]}_token_id"] = i
        goes_on = piece.startswith(GOES_ON) and len(piece) > len(GOES_ON)
        tokens.append(piece if marked else piece[2:] if goes_on else SPACE + piece)
    if "tokenizer.ggml.unknown_token_id" not in found:
        raise CheckpointError(f"{path}: no [UNK] among its lines; a WordPiece vocabulary has one")
    return found | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


def _read_lines(path: Path) -> list[str]:
    try:
        return [line.removesuffix("\r") for line in read_bytes(path).decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: byte {error.start} is not UTF-8") from None
