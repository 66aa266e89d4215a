"""Byte-level BPE from GGUF metadata (`tokenizer.ggml.model` = "gpt2"): tokens, merges, and a named
pre-tokenizer.

Merging is the `tokenizers` library's; the table below says how each `tokenizer.ggml.pre` cuts a
text beforehand. A name is in the table only when golden ids of a real vocabulary prove it; others
are refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from flyweight.errors import CheckpointError, nearest
from flyweight.text.alphabet import piece_bytes
from flyweight.text.codec import Marks, TextStream
from flyweight.text.gguf import GgufVocabulary, TokenType, read_vocabulary, strings
from flyweight.text.library import guarded, not_encoded
from flyweight.text.special import SpecialSplitter
from flyweight.text.streams import ByteStream, join_bytes
from flyweight.untrusted import shown


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut before merging: each pattern in turn splits what the ones before it left,
    matches apart.
    """

    patterns: tuple[str, ...]
    spelled: tuple[
        str, ...
    ] = ()  # patterns that cut the byte-level spelling, where U+00BD is a digit
    nfc: bool = False
    ignore_merges: bool = False  # a cut that is itself a piece is taken whole
    add_bos: bool = False  # the family's habit where the file does not say


_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_LLAMA3 = PreTokenizer((_CASELESS_WORDS % "{1,3}",), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_CASELESS_WORDS % "",), nfc=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "gpt-2": PreTokenizer((_WORDS,)),
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "qwen2": _QWEN2,
        "deepseek-r1-qwen": _QWEN2,
        "falcon": PreTokenizer(
            (r"[\p{P}$+<=>^~|`]+", _WORDS), spelled=(r"\p{N}+", r"[0-9][0-9][0-9]")
        ),
        "starcoder": PreTokenizer((r"\p{N}", _WORDS)),
        "deepseek-llm": PreTokenizer(
            (
                r"[\r\n]",
                r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",  # cased letters only
                r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _CJK,
                r"\p{N}+",
            )
        ),
        "deepseek-coder": PreTokenizer(
            (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
        ),
    }
)


class GgufBpeCodec:
    """Byte-level BPE.  Special tokens are found by us: the library object is never reconfigured."""

    def __init__(
        self, vocabulary: GgufVocabulary, merges: Sequence[str], pre: PreTokenizer
    ) -> None:
        self._pieces = vocabulary.pieces
        self._special = vocabulary.marks.special_ids
        self._around = vocabulary.around
        self._bytes = _bytes_table(vocabulary)
        self._library = _library(vocabulary, merges, pre)
        self._splitter = SpecialSplitter(
            vocabulary.of_type(TokenType.USER_DEFINED), vocabulary.control()
        )

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        before, after = self._around if add_special else ((), ())
        ids = list(before)
        for part in self._splitter.split(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                with guarded(not_encoded):
                    ids += self._library.encode(part, add_special_tokens=False).ids
        ids.extend(after)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        pieces = [self.token_bytes(i, not skip_special) for i in ids]
        return join_bytes(pieces, strip_space=False)

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        bytes_of = partial(self.token_bytes, special=not skip_special)
        return ByteStream(bytes_of, context, strip_space=False)

    def token_bytes(self, token: int, special: bool) -> bytes:
        if not 0 <= token < len(self._pieces) or (token in self._special and not special):
            return b""
        return self._bytes[token]

    def piece(self, token: int) -> str:
        return self._pieces[token] if 0 <= token < len(self._pieces) else ""


def _bytes_table(vocabulary: GgufVocabulary) -> list[bytes]:
    """Normal pieces are in the byte alphabet; user-defined and special ones are spelled as they
    are.
    """
    plain = {TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN}
    return [
        piece.encode() if kind in plain else piece_bytes(piece)
        for piece, kind in zip(vocabulary.pieces, vocabulary.types, strict=True)
    ]


def _library(vocabulary: GgufVocabulary, merges: Sequence[str], pre: PreTokenizer) -> Tokenizer:
    ids = vocabulary.of_type(TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    model = models.BPE(
        vocab=ids, merges=_pairs(merges, ids), ignore_merges=pre.ignore_merges, fuse_unk=False
    )
    library = Tokenizer(model)
    if pre.nfc:
        library.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [*_splits(pre.patterns), alphabet, *_splits(pre.spelled)]
    )
    return library


def _splits(patterns: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def _pairs(merges: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Merges as pairs.  One whose result is no piece is left out: it could never be taken, and
    published files hold such.
    """
    pairs = []
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        unknown = [piece for piece in (left, right) if piece not in ids]
        if unknown:
            raise CheckpointError(
                f"tokenizer.ggml.merges[{i}] is {merge[:40]!r}, but {unknown[0][:40]!r} is not "
                "among tokenizer.ggml.tokens"
            )
        if left + right in ids:
            pairs.append((left, right))
    return pairs


def load_gguf_bpe(metadata: Mapping[str, object]) -> tuple[GgufBpeCodec, Marks]:
    """Build from `tokenizer.ggml.*`; BOS is added when the file or the pre-tokenizer's family says
    so.
    """
    name = metadata.get("tokenizer.ggml.pre")
    known = ", ".join(PRE_TOKENIZERS)
    if name is None:
        raise CheckpointError(f"tokenizer.ggml.pre is missing; known: {known}")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        hint = nearest(name[:80], PRE_TOKENIZERS) if isinstance(name, str) else ""
        raise CheckpointError(f"tokenizer.ggml.pre is {shown(name)}{hint}; known: {known}")
    pre = PRE_TOKENIZERS[name]
    vocabulary = read_vocabulary(metadata, add_bos=pre.add_bos)
    codec = GgufBpeCodec(vocabulary, strings(metadata, "merges"), pre)
    return codec, vocabulary.marks
