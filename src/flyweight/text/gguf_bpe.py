"""BPE from GGUF metadata (`tokenizer.ggml.model` = "gpt2", or "gemma4"): tokens, merges, and a
named pre-tokenizer.

Merging is native, over the file's own bytes; how a text is cut beforehand is `pretokenizers`'.  A
name that is not in that table is refused: ids would be wrong without a sign of it.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from flyweight import _native
from flyweight.errors import CheckpointError, nearest
from flyweight.text.codec import BYTE_PIECE, SPACE, SpecialIds, decode_piece
from flyweight.text.gguf import GgufVocabulary, TokenType, find_ids, read_strings, read_vocabulary
from flyweight.text.library import catch_faults, make_encoding_error
from flyweight.text.pieces import PieceCodec, PieceKind
from flyweight.text.pretokenizers import (
    PRE_TOKENIZERS,
    PreTokenizer,
    PreTokens,
    make_normalizer,
    split_text,
)
from flyweight.validation.strings import Strings
from flyweight.validation.untrusted import shown

MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
PART = 4096  # characters that one call cuts into words; no other thread runs during it
PIECE, BYTE = 1, 2  # how a token takes part in merging
PLAIN = {TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN}  # spelled as they are


def make_bpe_codec(
    vocabulary: GgufVocabulary, merges: Sequence[str], rules: PreTokenizer
) -> PieceCodec:
    """A codec of these pieces; `merges` are two pieces with a space between that join to a piece,
    first ones first.  One whose result is no piece is left out: it could never be taken, and
    published files hold such.
    """
    model = _build_model(vocabulary, rules)
    _add_merges(model, merges, vocabulary)
    prepare, words = make_normalizer(rules), PreTokens(rules)
    joints = re.compile(rules.joints) if rules.joints else None

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        with catch_faults(make_encoding_error):
            for part in split_text(text, joints, PART):  # others have their turn between them
                part = part if prepare is None else prepare.normalize_str(part)
                ids += model.encode(words.split(part))
        return ids

    return PieceCodec(vocabulary, PieceKind(encode, partial(_decode_token, vocabulary, rules.raw)))


def _build_model(vocabulary: GgufVocabulary, rules: PreTokenizer) -> _native.Bpe:
    uses = np.zeros(len(vocabulary.types), np.uint8)
    uses[find_ids(vocabulary.types, *MERGED)] = PIECE
    if rules.raw:
        uses[find_ids(vocabulary.types, TokenType.BYTE)] = BYTE
    uses[sorted(vocabulary.marks.special_ids)] = 0
    pieces = Strings.of(vocabulary.pieces)
    return _native.Bpe(pieces.raw, pieces.begin, pieces.end, uses, rules.ignore_merges, rules.raw)


def _add_merges(model: _native.Bpe, merges: Sequence[str], vocabulary: GgufVocabulary) -> None:
    found = Strings.of(merges)
    i = model.add_merges(found.raw, found.begin, found.end)
    if i < 0:
        return
    known = vocabulary.select_types(*MERGED)
    sides = merges[i].partition(" ")
    unknown = next(piece for piece in (sides[0], sides[2]) if piece not in known)
    raise CheckpointError(
        f"tokenizer.ggml.merges[{i}] is {merges[i][:40]!r}, but {unknown[:40]!r} is not "
        "among tokenizer.ggml.tokens"
    )


def _decode_token(vocabulary: GgufVocabulary, raw: bool, token: int) -> bytes:
    """What a piece adds to a text: byte-level ones are in that alphabet."""
    piece = vocabulary.pieces[token]
    if vocabulary.types[token] in PLAIN:
        return piece.encode()
    return _decode_raw_piece(piece) if raw else decode_piece(piece)


def _decode_raw_piece(piece: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()


def _read_rules(metadata: Mapping[str, object]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") == "gemma4":  # its name says it already
        name = "gemma4"
    known = ", ".join(PRE_TOKENIZERS)
    if name is None:
        raise CheckpointError(f"tokenizer.ggml.pre is missing; known: {known}")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        hint = nearest(name[:80], PRE_TOKENIZERS) if isinstance(name, str) else ""
        raise CheckpointError(f"tokenizer.ggml.pre is {shown(name)}{hint}; known: {known}")
    return PRE_TOKENIZERS[name]


def load_gguf_bpe(metadata: Mapping[str, object]) -> tuple[PieceCodec, SpecialIds]:
    """Build from `tokenizer.ggml.*`; BOS is added when the file or the pre-tokenizer's family says
    so.
    """
    rules = _read_rules(metadata)
    vocabulary = read_vocabulary(metadata, add_bos=rules.add_bos, decoded=False)
    return make_bpe_codec(vocabulary, read_strings(metadata, "merges"), rules), vocabulary.marks
