"""A directory with tokenizer.json, through the `tokenizers` library, which is the authority on its
ids and its text.

tokenizer_config.json adds what the library does not know: BOS and EOS, whether to add them, tokens
added later, the chat template (kept as a string).  Both files are checked here; every fault is a
`CheckpointError` naming the file.
"""

import json
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from flyweight.errors import CheckpointError
from flyweight.text.codec import BYTE_PIECE, SPACE, SpecialIds, TextStream, decode_piece
from flyweight.text.companions import (
    CONFIG,
    Json,
    is_encodable,
    read_added_tokens,
    read_chat_templates,
    read_companions,
    read_flag,
    read_token,
)
from flyweight.text.library import (
    catch_faults,
    encode_text,
    make_decoding_error,
    make_encoding_error,
)
from flyweight.text.streams import ByteStream, Filtered, RunStream, WholeStream
from flyweight.validation.untrusted import read_bytes, shown

MOST_BYTES = 256 << 20
PIECEWISE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"}


class HfCodec:
    """The library's tokenizer, and how its decoder's text can be followed id by id.

    tokenizer.json's post-processor decides what `add_special` adds; `around`, ids before and after
    a text, stands in where it has none.
    """

    def __init__(
        self,
        library: Tokenizer,
        special: frozenset[int],
        around: tuple[list[int], list[int]] | None,
    ) -> None:
        self._library = library
        self._special = special
        self._around = around
        self._steps = _list_decoder_steps(library)
        self._names = [step.get("type") for step in self._steps]
        self.vocab_size = 1 + max(library.get_vocab().values(), default=-1)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        with catch_faults(make_encoding_error):
            return self.encode_raw(text, add_special, parse_special)

    def encode_raw(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """`encode`, with the library's own faults."""
        library = self._library if parse_special else self._literal
        if not add_special or self._around is None:
            return list(encode_text(library, text, add_special).ids)
        before, after = self._around
        return [*before, *encode_text(library, text).ids, *after]

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        kept = [i for i in ids if self._is_shown(skip_special, i)]
        with catch_faults(make_decoding_error):
            return str(self._library.decode(kept, skip_special_tokens=False))

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        if self._byte_level:
            bytes_of = partial(self.token_bytes, special=not skip_special)
            return ByteStream(bytes_of, context, strip_space=False)
        shown = partial(self._is_shown, skip_special)
        decode = partial(self.decode, skip_special=False)
        if not self._piecewise:
            return Filtered(WholeStream(decode, list(filter(shown, context))), shown)
        newest_first = filter(shown, reversed(context))
        return Filtered(RunStream(decode, self._is_settled, newest_first), shown)

    def token_bytes(self, token: int, special: bool) -> bytes:
        piece = self.piece(token)
        if token in self._special and not special:
            return b""
        if self._byte_level:
            return decode_piece(piece)
        byte = BYTE_PIECE.fullmatch(piece) if "ByteFallback" in self._names else None
        if byte:
            return bytes([int(byte[1], 16)])
        spaced = "Metaspace" in self._names or "Replace" in self._names
        return (piece.replace(SPACE, " ") if spaced else piece).encode()

    def piece(self, token: int) -> str:
        return (self._library.id_to_token(token) or "") if 0 <= token < self.vocab_size else ""

    @cached_property
    def _literal(self) -> Tokenizer:
        """A second library object, which reads special tokens in a text as plain characters."""
        library = Tokenizer.from_str(self._library.to_str())
        library.encode_special_tokens = True
        return library

    @cached_property
    def _byte_level(self) -> bool:
        return self._names == ["ByteLevel"]

    @cached_property
    def _piecewise(self) -> bool:
        """Whether a text is settled up to and including every piece that is no byte."""
        fused = self._names.index("Fuse") if "Fuse" in self._names else len(self._names)
        ends_kept = all(s.get("stop") == 0 for s in self._steps if s.get("type") == "Strip")
        known = set(self._names) <= PIECEWISE and set(self._names[fused + 1 :]) <= {"Strip"}
        return known and ends_kept

    def _is_shown(self, skip_special: bool, token: int) -> bool:
        """Whether the decoder sees this id."""
        return bool(self.piece(token)) and not (skip_special and token in self._special)

    def _is_settled(self, token: int) -> bool:
        return not BYTE_PIECE.fullmatch(self.piece(token))


def load_hf(directory: Path) -> tuple[HfCodec, SpecialIds]:
    """Read tokenizer.json and, where present, its three companions in `directory`."""
    path = directory / "tokenizer.json"
    unusable = f"{path}: not a readable tokenizer"
    with catch_faults(lambda reason: CheckpointError(f"{unusable} ({reason})")):
        return _load(_read_library(path), directory)


def _load(library: Tokenizer, directory: Path) -> tuple[HfCodec, SpecialIds]:
    config, path = read_companions(directory), directory / CONFIG
    _add_tokens(library, config, path)
    bos = _read_token_id(library, config, "bos_token", path)
    eos = _read_token_id(library, config, "eos_token", path)
    around = None
    if library.post_processor is None:
        around = (
            [bos] if bos is not None and read_flag(config, "add_bos_token", path) else [],
            [eos] if eos is not None and read_flag(config, "add_eos_token", path) else [],
        )
    listed = library.get_added_tokens_decoder().items()
    special = {i for i, token in listed if token.special} | {i for i in (bos, eos) if i is not None}
    codec = HfCodec(library, frozenset(special), around)
    added = codec.encode_raw("", add_special=True, parse_special=True)
    marks = SpecialIds(
        bos_id=bos,
        eos_id=eos,
        eos_ids=() if eos is None else (eos,),
        add_bos=bos is not None and added[:1] == [bos],
        add_eos=eos is not None and added[-1:] == [eos] and added != [bos],
        special_ids=frozenset(special),
        templates=read_chat_templates(directory, config),
        unk_token=read_token(config, "unk_token") or "",
        pad_token=read_token(config, "pad_token") or "",
    )
    return codec, marks


def _read_library(path: Path) -> Tokenizer:
    library: Tokenizer = Tokenizer.from_buffer(read_bytes(path, MOST_BYTES))
    library.no_truncation()
    library.no_padding()
    return library


def _add_tokens(library: Tokenizer, config: Json, path: Path) -> None:
    """Tokens that only tokenizer_config.json lists; each must land on the id the file gives it."""
    for key, entry in read_added_tokens(config, path).items():
        content = str(entry["content"])
        if library.token_to_id(content) is None:
            options = ("single_word", "lstrip", "rstrip", "normalized", "special")
            wanted = {name: bool(entry[name]) for name in options if name in entry}
            library.add_tokens([AddedToken(content, **wanted)])
        found = library.token_to_id(content)
        if found != key:
            raise CheckpointError(
                f"{path}: added_tokens_decoder gives {shown(content)} the id {key}, "
                f"tokenizer.json {found}"
            )


def _read_token_id(library: Tokenizer, config: Json, name: str, path: Path) -> int | None:
    if config.get(name) is None:
        return None
    content = read_token(config, name)
    found = library.token_to_id(content) if content is not None and is_encodable(content) else None
    if found is None:
        raise CheckpointError(
            f"{path}: {name} {shown(content or config[name])} is not in the vocabulary"
        )
    if found not in library.get_added_tokens_decoder():  # a plain piece: let texts spell it
        library.add_special_tokens([AddedToken(str(content), special=True, normalized=False)])
    return int(found)


def _list_decoder_steps(library: Tokenizer) -> list[Json]:
    """The decoder's parts in order, as the library serialises them; empty when it has none."""
    if library.decoder is None:
        return []
    state: Json = json.loads(library.decoder.__getstate__())
    parts = state.get("decoders")
    return parts if state.get("type") == "Sequence" and isinstance(parts, list) else [state]
