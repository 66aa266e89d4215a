"""SentencePiece's models from GGUF metadata: BPE (`tokenizer.ggml.model` = "llama"), pieces with
scores and bytes as a fallback; and unigram ("t5"), of all ways to cut a text into pieces the one
whose scores have the largest sum.

BPE: a text is its characters, and the adjacent pair whose joined piece scores best is joined,
leftmost first among equals, until no join is a piece; characters that are no piece become their
UTF-8 bytes. Unigram: the search is the `tokenizers` library's, over normal pieces alone; what no
piece covers becomes its UTF-8 bytes where the vocabulary has those, else the unknown token, one for
a run. Control tokens never come out of plain text. Ids equal those of SentencePiece and of HF's
converted tokenizer for the same vocabulary.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from tokenizers import Tokenizer, models

from flyweight.errors import CheckpointError
from flyweight.text.codec import BYTE_PIECE, SPACE, SpecialIds, TextStream
from flyweight.text.gguf import GgufVocabulary, TokenType, fill_defaults, read_flag, read_vocabulary
from flyweight.text.library import (
    catch_faults,
    encode_text,
    make_encoding_error,
    make_normalization,
)
from flyweight.text.pieces import PieceCodec, PieceKind, SpecialSplitter
from flyweight.text.streams import ByteStream, join_bytes

SPM_DEFAULTS = {"bos_token_id": 1, "eos_token_id": 2}  # Llama's ids, where the file gives none
UNIGRAM_DEFAULTS = {"eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0}  # T5's
UNKNOWN = 0  # in the library's own numbering
CACHED_WORDS = 1 << 16
CACHED_LENGTH = 32  # longer stretches are rarely seen twice

# (minus score, first character, characters): the heap's order is the merge order
Merge = tuple[float, int, int]


class SpmCodec:
    """Score-driven merging of texts that `normalize` has prepared.  `_words` remembers the ids of
    short words; it only ever saves time.
    """

    def __init__(
        self, vocabulary: GgufVocabulary, add_space: bool, normalize: Callable[[str], str]
    ) -> None:
        scores = vocabulary.scores
        if scores is None:
            raise CheckpointError("tokenizer.ggml.scores is missing")
        self._pieces = vocabulary.pieces
        self._special = vocabulary.marks.special_ids
        self._ids = vocabulary.select_types(TokenType.NORMAL, TokenType.USER_DEFINED)
        self._rank = {piece: -scores[i] for piece, i in self._ids.items()}
        self._byte_ids = find_byte_ids(vocabulary)
        self._has_bytes = TokenType.BYTE in vocabulary.types
        self._normalize = normalize
        self._bytes = decode_pieces(vocabulary)
        self._add_space = add_space
        self._around = vocabulary.around
        self._splitter = SpecialSplitter(
            vocabulary.select_types(TokenType.USER_DEFINED), vocabulary.select_control()
        )
        self._word = _make_word_pattern(self._ids)
        self._words: dict[str, list[int]] = {}

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        before, after = self._around if add_special else ((), ())
        ids = list(before)
        prefix = SPACE if self._add_space else ""  # at the start, and again after a special token
        for part in self._splitter.split(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                self._encode_plain(prefix, self._normalize(part), ids)
        ids.extend(after)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        pieces = [self.token_bytes(i, not skip_special) for i in ids]
        return join_bytes(pieces, strip_space=self._add_space)

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        bytes_of = partial(self.token_bytes, special=not skip_special)
        return ByteStream(bytes_of, context, strip_space=self._add_space)

    def token_bytes(self, token: int, special: bool) -> bytes:
        if not 0 <= token < len(self._pieces) or (token in self._special and not special):
            return b""
        return self._bytes[token]

    def piece(self, token: int) -> str:
        return self._pieces[token] if 0 <= token < len(self._pieces) else ""

    def _encode_plain(self, prefix: str, text: str, ids: list[int]) -> None:
        text = prefix + text.replace(" ", SPACE) if text else ""
        for word in self._word.findall(text) if self._word else (text,):
            known = self._words.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(word) <= CACHED_LENGTH and len(self._words) < CACHED_WORDS:
                    self._words[word] = known
            ids += known

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in _merge(word, self._rank):
            token = self._ids.get(symbol)
            if token is not None:
                ids.append(token)
            elif not self._has_bytes:  # one unknown token for a run of them
                ids += self._byte_ids[:1] if ids[-1:] != self._byte_ids[:1] else []
            else:
                ids.extend(self._byte_ids[byte] for byte in symbol.encode())
        return ids


def _merge(word: str, rank: Mapping[str, float]) -> list[str]:
    """Join characters by score, O(n log n).  `ends[i]` is where the symbol starting at i ends, 0
    once absorbed.
    """
    size = len(word)
    ends = list(range(1, size + 1))
    starts = list(range(-1, size))  # starts[j]: where the symbol ending at j starts
    heap: list[Merge] = [
        (rank[word[i : i + 2]], i, 2) for i in range(size - 1) if word[i : i + 2] in rank
    ]
    heapify(heap)
    while heap:
        _, left, length = heappop(heap)
        middle, end = ends[left], left + length
        if middle == 0 or middle >= end or ends[middle] != end:
            continue  # one of the two was joined to something else meanwhile
        ends[left], ends[middle], starts[end] = end, 0, left
        if end < size and (after := rank.get(word[left : ends[end]])) is not None:
            heappush(heap, (after, left, ends[end] - left))
        if left > 0:
            before = starts[left]
            if (joined := rank.get(word[before:end])) is not None:
                heappush(heap, (joined, before, end - before))
    return [word[i : ends[i]] for i in range(size) if ends[i]]


def _make_word_pattern(pieces: Mapping[str, int]) -> re.Pattern[str] | None:
    """Where a text may be cut without changing its ids: before a space, if no piece has one after
    another character.

    No merge can then cross such a place, so the stretches merge independently.
    """
    if any(SPACE in piece.lstrip(SPACE) for piece in pieces):
        return None
    return re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")


def find_byte_ids(vocabulary: GgufVocabulary) -> list[int]:
    """Id for each byte value; the unknown token stands in where the vocabulary has no piece for a
    byte.
    """
    found: dict[int, int] = {}
    for i, piece in enumerate(vocabulary.pieces):
        if vocabulary.types[i] == TokenType.BYTE:
            found[_parse_byte(piece, i)] = i
    fallback = vocabulary.unknown_id
    missing = [byte for byte in range(256) if byte not in found]
    if missing and fallback is None:
        raise CheckpointError(
            f"tokenizer.ggml.tokens has no piece for byte 0x{missing[0]:02X} and "
            "tokenizer.ggml.unknown_token_id is missing"
        )
    return [found.get(byte, fallback if fallback is not None else 0) for byte in range(256)]


def _parse_byte(piece: str, token: int) -> int:
    match = BYTE_PIECE.fullmatch(piece)
    if not match:
        raise CheckpointError(
            f"tokenizer.ggml.tokens[{token}] is {piece[:20]!r}, "
            "but its type says byte (<0x00> to <0xFF>)"
        )
    return int(match[1], 16)


def decode_pieces(vocabulary: GgufVocabulary) -> list[bytes]:
    """What each id adds to a text; user-defined and special pieces are spelled as they are."""
    table = []
    for i, (piece, kind) in enumerate(zip(vocabulary.pieces, vocabulary.types, strict=True)):
        if kind == TokenType.BYTE:
            table.append(bytes([_parse_byte(piece, i)]))
        elif kind in (TokenType.NORMAL, TokenType.UNUSED):
            table.append(piece.replace(SPACE, " ").encode())
        else:
            table.append(piece.encode())
    return table


def load_spm(metadata: Mapping[str, object]) -> tuple[SpmCodec, SpecialIds]:
    """Build from `tokenizer.ggml.*`; BOS is added unless the file says otherwise."""
    vocabulary = read_vocabulary(fill_defaults(metadata, SPM_DEFAULTS), add_bos=True)
    normalize = make_normalization(metadata, collapse=False)
    codec = SpmCodec(vocabulary, read_flag(metadata, "add_space_prefix", True), normalize)
    return codec, vocabulary.marks


def load_unigram(metadata: Mapping[str, object]) -> tuple[PieceCodec, SpecialIds]:
    """Build from `tokenizer.ggml.*`; EOS is added unless the file says otherwise, BOS is not."""
    vocabulary = read_vocabulary(
        fill_defaults(metadata, UNIGRAM_DEFAULTS), add_bos=False, add_eos=True
    )
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
