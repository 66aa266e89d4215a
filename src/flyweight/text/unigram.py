"""Unigram vocabularies (`tokenizer.ggml.model` = "t5"; SentencePiece's model type 1): of all ways
to cut a text into pieces, the one whose scores have the largest sum.

The search is the `tokenizers` library's, over normal pieces alone, so that neither control tokens
nor bytes ever come out of a text that spells their names.  What no piece covers becomes its UTF-8
bytes where the vocabulary has those, else the unknown token, one for a run.
"""

from collections.abc import Callable, Mapping
from functools import partial

from tokenizers import Tokenizer, models

from flyweight.errors import CheckpointError
from flyweight.text.alphabet import SPACE
from flyweight.text.codec import SpecialIds
from flyweight.text.gguf import GgufVocabulary, TokenType, fill_defaults, read_flag, read_vocabulary
from flyweight.text.gguf_spm import decode_pieces, find_byte_ids
from flyweight.text.library import (
    catch_faults,
    encode_text,
    make_encoding_error,
    make_normalization,
)
from flyweight.text.pieces import PieceCodec, PieceKind

UNSAID = {"eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0}  # T5's
UNKNOWN = 0  # in the library's own numbering


def load_unigram(metadata: Mapping[str, object]) -> tuple[PieceCodec, SpecialIds]:
    """Build from `tokenizer.ggml.*`; EOS is added unless the file says otherwise, BOS is not."""
    vocabulary = read_vocabulary(fill_defaults(metadata, UNSAID), add_bos=False, add_eos=True)
    if vocabulary.scores is None:
        raise CheckpointError("tokenizer.ggml.scores is missing")
    add_space = read_flag(metadata, "add_space_prefix", True)
    prepare = partial(_add_space, make_normalization(metadata, collapse=True), add_space)
    encode = partial(
        _encode, _build_library(vocabulary), _map_ids(vocabulary), _list_byte_ids(vocabulary)
    )
    spelled = decode_pieces(vocabulary).__getitem__
    kind = PieceKind(lambda text: encode(prepare(text)), spelled, strip_space=add_space)
    return PieceCodec(vocabulary, kind), vocabulary.marks


def _add_space(normalize: Callable[[str], str], add_space: bool, text: str) -> str:
    text = normalize(text).replace(" ", SPACE)
    return SPACE + text if add_space and text else text


def _encode(library: Tokenizer, numbers: list[int], in_bytes: list[int], text: str) -> list[int]:
    with catch_faults(make_encoding_error):
        found = encode_text(library, text)
    ids: list[int] = []
    for token, (start, end) in zip(found.ids, found.offsets, strict=True):
        if token == UNKNOWN and in_bytes:
            ids += [in_bytes[byte] for byte in text[start:end].encode()]
        else:
            ids.append(numbers[token])
    return ids


def _build_library(vocabulary: GgufVocabulary) -> Tokenizer:
    scores = vocabulary.scores
    assert scores is not None
    normal = [(vocabulary.pieces[i], scores[i]) for i in _list_normal_ids(vocabulary)]
    with catch_faults(lambda reason: CheckpointError(f"tokenizer.ggml.tokens: {reason}")):
        return Tokenizer(models.Unigram([("", 0.0), *normal], unk_id=UNKNOWN))


def _list_normal_ids(vocabulary: GgufVocabulary) -> list[int]:
    """Ids of the pieces the search may choose."""
    return [
        i
        for i, (kind, piece) in enumerate(zip(vocabulary.types, vocabulary.pieces, strict=True))
        if kind == TokenType.NORMAL and piece
    ]


def _map_ids(vocabulary: GgufVocabulary) -> list[int]:
    """Our id for each of the library's."""
    if vocabulary.unknown_id is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing")
    return [vocabulary.unknown_id, *_list_normal_ids(vocabulary)]


def _list_byte_ids(vocabulary: GgufVocabulary) -> list[int]:
    return find_byte_ids(vocabulary) if TokenType.BYTE in vocabulary.types else []
