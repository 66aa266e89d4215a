"""BPE from GGUF metadata (`tokenizer.ggml.model` = "gpt2", or "gemma4"): tokens, merges, and a
named pre-tokenizer.

Merging is the `tokenizers` library's; how a text is cut beforehand is `pretokenizers`'.  A name
that is not in that table is refused: ids would be wrong in ways nobody sees.
"""

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Tokenizer, models

from flyweight.errors import CheckpointError, nearest
from flyweight.text.alphabet import BYTE_PIECE, SPACE, piece_bytes
from flyweight.text.codec import Marks
from flyweight.text.gguf import GgufVocabulary, TokenType, read_vocabulary, strings
from flyweight.text.library import guarded, not_encoded
from flyweight.text.pieces import Kind, PieceCodec
from flyweight.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer, normalizer, splitter
from flyweight.untrusted import shown

PLAIN = {TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN}  # spelled as they are


def bpe_codec(
    vocabulary: GgufVocabulary, merges: Iterable[tuple[str, str]], rules: PreTokenizer
) -> PieceCodec:
    """A codec of these pieces; `merges` are pairs of pieces that join to a piece, first ones
    first.
    """
    kinds = [TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED]
    ids = vocabulary.of_type(*kinds, *([TokenType.BYTE] if rules.raw else []))
    model = models.BPE(
        vocab=ids,
        merges=list(merges),
        ignore_merges=rules.ignore_merges,
        byte_fallback=rules.raw,
        fuse_unk=False,
    )
    library = Tokenizer(model)
    if (steps := normalizer(rules)) is not None:
        library.normalizer = steps
    library.pre_tokenizer = splitter(rules)

    def encode(text: str) -> list[int]:
        with guarded(not_encoded):
            return list(library.encode(text, add_special_tokens=False).ids)

    return PieceCodec(vocabulary, Kind(encode, _spelled(vocabulary, rules.raw)))


def _spelled(vocabulary: GgufVocabulary, raw: bool) -> list[bytes]:
    """What each piece adds to a text: byte-level ones are in that alphabet."""
    spell = _raw_bytes if raw else piece_bytes
    return [
        piece.encode() if kind in PLAIN else spell(piece)
        for piece, kind in zip(vocabulary.pieces, vocabulary.types, strict=True)
    ]


def _raw_bytes(piece: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()


def _pairs(merges: Sequence[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """Merges as pairs.  One whose result is no piece is left out: it could never be taken, and
    published files hold such.
    """
    known, pairs = frozenset(known), []
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        unknown = [piece for piece in (left, right) if piece not in known]
        if unknown:
            raise CheckpointError(
                f"tokenizer.ggml.merges[{i}] is {merge[:40]!r}, but {unknown[0][:40]!r} is not "
                "among tokenizer.ggml.tokens"
            )
        if left + right in known:
            pairs.append((left, right))
    return pairs


def _rules(metadata: Mapping[str, object]) -> PreTokenizer:
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


def load_gguf_bpe(metadata: Mapping[str, object]) -> tuple[PieceCodec, Marks]:
    """Build from `tokenizer.ggml.*`; BOS is added when the file or the pre-tokenizer's family says
    so.
    """
    rules = _rules(metadata)
    vocabulary = read_vocabulary(metadata, add_bos=rules.add_bos)
    kinds = [TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED]
    pairs = _pairs(strings(metadata, "merges"), vocabulary.of_type(*kinds))
    return bpe_codec(vocabulary, pairs, rules), vocabulary.marks
