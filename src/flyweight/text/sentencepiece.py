"""SentencePiece files (tokenizer.model, spiece.model) as GGUF metadata, which names the same
things.

Model types unigram and BPE are read, words and characters refused.  The file format is
SentencePiece's sentencepiece_model.proto, read from Protocol Buffers' wire format (every length is
checked against the message before it is used); scores, types and the map of characters are taken
over as they are.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import unpack
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.text.alphabet import SPACE
from flyweight.text.gguf import TokenType
from flyweight.validation.untrusted import read_bytes

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
