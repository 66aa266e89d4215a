"""GGUF tokenizer metadata (`tokenizer.ggml.*`) read into one checked record that every kind but
tokenizer.json builds on; other files are brought into this form first.

Every array is checked against the token count and every id against the vocabulary before use.  Key
names and token types follow the GGUF specification; this file does not know how the metadata was
read, nor how a kind merges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.text.codec import DEFAULT, SpecialIds
from flyweight.validation.strings import Strings
from flyweight.validation.untrusted import END_KEYS, read_token_id, shown
from flyweight.wire import U8

MOST_TOKENS = 1 << 24
TURN_ENDS = frozenset({  # how models spell the end of a turn or of a message
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
})  # fmt: skip


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` values of the GGUF specification."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Pieces and types per id (equal length), scores where the file has them, and where each
    special token stands.
    """

    pieces: Sequence[str]
    types: U8
    scores: list[float] | None
    unknown_id: int | None
    marks: SpecialIds
    around: tuple[list[int], list[int]]  # ids added before and after a text on request

    def select_types(self, *types: TokenType) -> dict[str, int]:
        """Piece to id for the given types, special ids aside; of equal pieces the last counts."""
        special = self.marks.special_ids
        found = [i for i in find_ids(self.types, *types) if i not in special]
        return {piece: i for i in found if (piece := self.pieces[i])}

    def select_control(self) -> dict[str, int]:
        """Piece to id of the special tokens."""
        return {self.pieces[i]: i for i in sorted(self.marks.special_ids)}


def fill_defaults(metadata: Mapping[str, object], ids: Mapping[str, int]) -> dict[str, object]:
    """`metadata` with the ids a kind's first model had, for keys that are missing and ids the
    vocabulary has.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, Strings | list | tuple) else 0
    unsaid = {f"tokenizer.ggml.{key}": token for key, token in ids.items() if token < count}
    return {**unsaid, **metadata}


def read_vocabulary(
    metadata: Mapping[str, object], add_bos: bool, add_eos: bool = False, decoded: bool = True
) -> GgufVocabulary:
    """Check and collect `tokenizer.ggml.*`; `add_bos` and `add_eos` are the kind's rule where the
    file states none; pieces that are not `decoded` yet are when they are read.
    """
    pieces = read_strings(metadata, "tokens")
    if decoded:
        pieces = list(pieces)
    if not 0 < len(pieces) <= MOST_TOKENS:
        raise CheckpointError(
            f"tokenizer.ggml.tokens has {len(pieces)} entries, not 1 to {MOST_TOKENS}"
        )
    types = _read_numbers(metadata, "token_type", len(pieces))
    if types is not None and not np.isin(types, list(TokenType)).all():
        raise CheckpointError("tokenizer.ggml.token_type holds a value that is not 1 to 6")
    kinds = np.full(len(pieces), TokenType.NORMAL, np.uint8)
    if types is not None:
        kinds = types.astype(np.uint8)
    scores = _read_numbers(metadata, "scores", len(pieces))
    if scores is not None and not np.isfinite(scores).all():
        raise CheckpointError("tokenizer.ggml.scores holds a value that is not finite")
    marks = _read_special_ids(metadata, pieces, kinds, (add_bos, add_eos))
    eos = marks.eos_id
    return GgufVocabulary(
        pieces=pieces,
        types=kinds,
        scores=None if scores is None else [float(s) for s in scores],
        unknown_id=read_optional_id(metadata, "unknown_token_id", len(pieces)),
        marks=marks,
        around=(
            [marks.bos_id] if marks.add_bos and marks.bos_id is not None else [],
            [eos] if marks.add_eos and eos is not None else [],
        ),
    )


def find_ids(types: U8, *wanted: TokenType) -> list[int]:
    """Ids of the given types, ascending."""
    found: list[int] = np.flatnonzero(np.isin(types, wanted)).tolist()
    return found


def read_strings(metadata: Mapping[str, object], key: str) -> Sequence[str]:
    """The string array `tokenizer.ggml.<key>`, every entry valid Unicode."""
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        raise CheckpointError(f"tokenizer.ggml.{key} is missing")
    if isinstance(values, Strings):
        if (i := values.malformed()) >= 0:
            raise CheckpointError(f"tokenizer.ggml.{key}[{i}] is not valid UTF-8")
        return values
    if not isinstance(values, list | tuple):
        raise CheckpointError(f"tokenizer.ggml.{key} is not an array of strings")
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise CheckpointError(f"tokenizer.ggml.{key}[{i}] is not a string")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise CheckpointError(f"tokenizer.ggml.{key}[{i}] is not valid UTF-8")
    return list(values)


def read_flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    """The boolean `tokenizer.ggml.<key>`."""
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool | np.bool_):
        raise CheckpointError(f"tokenizer.ggml.{key} is {shown(value)}, not true or false")
    return bool(value)


def _read_numbers(
    metadata: Mapping[str, object], key: str, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0, object)
    if array.dtype.kind not in "iuf" and array.size:
        raise CheckpointError(f"tokenizer.ggml.{key} is not an array of numbers")
    if array.shape != (count,):
        raise CheckpointError(
            f"tokenizer.ggml.{key} has {array.size} entries, but tokenizer.ggml.tokens has {count}"
        )
    with np.errstate(invalid="ignore"):  # a NaN is the caller's to refuse
        return array.astype(np.float64)


def read_optional_id(metadata: Mapping[str, object], key: str, count: int) -> int | None:
    """The id `tokenizer.ggml.<key>` of a vocabulary of `count`; none when it is missing or says
    there is none.
    """
    value = read_token_id(metadata, key)
    if value is not None and value >= count:
        raise CheckpointError(f"tokenizer.ggml.{key} is {value}, outside 0 to {count - 1}")
    return value


def _read_special_ids(
    metadata: Mapping[str, object], pieces: Sequence[str], types: U8, adds: tuple[bool, bool]
) -> SpecialIds:
    count = len(types)
    bos = read_optional_id(metadata, "bos_token_id", count)
    ends = [read_optional_id(metadata, key, count) for key in END_KEYS]
    eos = ends[0]
    eos_ids = tuple(sorted({i for i in ends if i is not None} | _find_turn_ends(pieces, types)))
    special = set(find_ids(types, TokenType.CONTROL, TokenType.UNKNOWN))
    special.update(eos_ids)
    if bos is not None:
        special.add(bos)
    unknown = read_optional_id(metadata, "unknown_token_id", count)
    padding = read_token_id(
        metadata, "padding_token_id"
    )  # published files point past the vocabulary
    return SpecialIds(
        bos_id=bos,
        eos_id=eos,
        eos_ids=eos_ids,
        add_bos=read_flag(metadata, "add_bos_token", adds[0]) and bos is not None,
        add_eos=read_flag(metadata, "add_eos_token", adds[1]) and eos is not None,
        special_ids=frozenset(special),
        templates=_read_templates(metadata),
        unk_token="" if unknown is None else pieces[unknown],
        pad_token="" if padding is None or padding >= count else pieces[padding],
    )


def _find_turn_ends(pieces: Sequence[str], types: U8) -> set[int]:
    """Ids of special tokens known to end a turn: most files name one end and have several."""
    special = {
        pieces[i]: i
        for i in find_ids(types, TokenType.CONTROL, TokenType.USER_DEFINED)
        if pieces[i] in TURN_ENDS
    }
    inner = {"<|end|>"} if {"<|return|>", "<|call|>"} <= special.keys() else set()
    return {i for piece, i in special.items() if piece not in inner}


def _read_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """Chat templates: the one without a name, and `tokenizer.chat_template.<name>`."""
    key = "tokenizer.chat_template"
    names = [k for k in metadata if k == key or k.startswith(f"{key}.")]
    for name in names:
        if not isinstance(metadata[name], str):
            raise CheckpointError(f"{name} is not a string")
    return {name[len(key) + 1 :] or DEFAULT: str(metadata[name]) for name in names}
