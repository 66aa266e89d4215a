"""WordPiece vocabularies of embedding models (`tokenizer.ggml.model` = "bert"; vocab.txt): words,
and pieces that go on a word, longest first.

GGUF marks what begins a word with U+2581; vocab.txt marks what goes on with ##, as the `tokenizers`
library does, which finds the pieces.  A word that cannot be covered is one unknown token.
"""

from collections.abc import Mapping
from dataclasses import replace

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from flyweight.errors import CheckpointError
from flyweight.text.codec import SPACE, SpecialIds
from flyweight.text.gguf import (
    GgufVocabulary,
    TokenType,
    fill_defaults,
    read_flag,
    read_optional_id,
    read_vocabulary,
)
from flyweight.text.library import catch_faults, encode_text, make_encoding_error
from flyweight.text.pieces import PieceCodec, PieceKind

# BERT's ids, where the file does not say; GGUF spells the separator's key so.
SEPARATOR = "seperator_token_id"
UNSAID = {"bos_token_id": 101, SEPARATOR: 102, "unknown_token_id": 100, "padding_token_id": 0}
GOES_ON = "##"
LONGEST_WORD = 100  # characters; a longer one is unknown


def load_wordpiece(metadata: Mapping[str, object]) -> tuple[PieceCodec, SpecialIds]:
    """Build from `tokenizer.ggml.*`; a text stands between [CLS] and [SEP] unless the file says
    otherwise.
    """
    metadata = fill_defaults(metadata, UNSAID)
    vocabulary = read_vocabulary(metadata, add_bos=True)
    end = read_optional_id(metadata, SEPARATOR, len(vocabulary.pieces))
    before, after = vocabulary.around
    if end is not None and read_flag(metadata, "add_sep_token", True):
        after = [end]
    vocabulary = replace(vocabulary, around=(before, after))
    library = _build_library(
        vocabulary, read_flag(metadata, "normalizer.lowercase", True), metadata
    )

    def encode(text: str) -> list[int]:
        with catch_faults(make_encoding_error):
            return list(encode_text(library, text).ids)

    spelled = [_decode_piece(piece) for piece in vocabulary.pieces]
    return PieceCodec(vocabulary, PieceKind(encode, spelled.__getitem__, True)), vocabulary.marks


def _build_library(
    vocabulary: GgufVocabulary, lowercase: bool, metadata: Mapping[str, object]
) -> Tokenizer:
    if vocabulary.unknown_id is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing")
    unknown = vocabulary.pieces[vocabulary.unknown_id]
    known = {
        _to_library_piece(piece): i
        for piece, i in vocabulary.select_types(TokenType.NORMAL).items()
        if piece
    }
    library = Tokenizer(
        models.WordPiece(
            known | {unknown: vocabulary.unknown_id},
            unk_token=unknown,
            max_input_chars_per_word=LONGEST_WORD,
        )
    )
    library.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=read_flag(metadata, "normalizer.strip_accents", lowercase),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library


def _to_library_piece(piece: str) -> str:
    return piece[1:] if piece.startswith(SPACE) else GOES_ON + piece


def _decode_piece(piece: str) -> bytes:
    return piece.replace(SPACE, " ", 1).encode() if piece.startswith(SPACE) else piece.encode()
