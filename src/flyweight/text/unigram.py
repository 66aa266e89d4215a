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
from flyweight.text.gguf import GgufVocabulary, TokenType, defaulted, flag, read_vocabulary
from flyweight.text.gguf_spm import byte_ids, piece_bytes
from flyweight.text.library import encoding, guarded, not_encoded
from flyweight.text.normalize import normalization
from flyweight.text.pieces import PieceCodec, PieceKind

UNSAID = {"eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0}  # T5's
UNKNOWN = 0  # in the library's own numbering


def load_unigram(metadata: Mapping[str, object]) -> tuple[PieceCodec, SpecialIds]:
    """Build from `tokenizer.ggml.*`; EOS is added unless the file says otherwise, BOS is not."""
    vocabulary = read_vocabulary(defaulted(metadata, UNSAID), add_bos=False, add_eos=True)
    if vocabulary.scores is None:
        raise CheckpointError("tokenizer.ggml.scores is missing")
    add_space = flag(metadata, "add_space_prefix", True)
    prepare = partial(_spaced, normalization(metadata, collapse=True), add_space)
    encode = partial(_encode, _library(vocabulary), _numbers(vocabulary), _bytes(vocabulary))
    spelled = piece_bytes(vocabulary).__getitem__
    kind = PieceKind(lambda text: encode(prepare(text)), spelled, strip_space=add_space)
    return PieceCodec(vocabulary, kind), vocabulary.marks


def _spaced(normalize: Callable[[str], str], add_space: bool, text: str) -> str:
    text = normalize(text).replace(" ", SPACE)
    return SPACE + text if add_space and text else text


def _encode(library: Tokenizer, numbers: list[int], in_bytes: list[int], text: str) -> list[int]:
    with guarded(not_encoded):
        found = encoding(library, text)
    ids: list[int] = []
    for token, (start, end) in zip(found.ids, found.offsets, strict=True):
        if token == UNKNOWN and in_bytes:
            ids += [in_bytes[byte] for byte in text[start:end].encode()]
        else:
            ids.append(numbers[token])
    return ids


def _library(vocabulary: GgufVocabulary) -> Tokenizer:
    scores = vocabulary.scores
    assert scores is not None
    normal = [(vocabulary.pieces[i], scores[i]) for i in _normal(vocabulary)]
    with guarded(lambda reason: CheckpointError(f"tokenizer.ggml.tokens: {reason}")):
        return Tokenizer(models.Unigram([("", 0.0), *normal], unk_id=UNKNOWN))


def _normal(vocabulary: GgufVocabulary) -> list[int]:
    """Ids of the pieces the search may choose."""
    return [
        i
        for i, (kind, piece) in enumerate(zip(vocabulary.types, vocabulary.pieces, strict=True))
        if kind == TokenType.NORMAL and piece
    ]


def _numbers(vocabulary: GgufVocabulary) -> list[int]:
    """Our id for each of the library's."""
    if vocabulary.unknown_id is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing")
    return [vocabulary.unknown_id, *_normal(vocabulary)]


def _bytes(vocabulary: GgufVocabulary) -> list[int]:
    return byte_ids(vocabulary) if TokenType.BYTE in vocabulary.types else []
