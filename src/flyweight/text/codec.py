"""The interface of a vocabulary kind: what it must offer, and the few facts every kind knows
about itself.

A new kind is one file with a `Codec` and a function that returns `(Codec, Marks)`, plus one line in
`tokenizer.py`. A codec is immutable after construction and safe to call from several threads; it
never adds BOS or EOS by itself.

Pieces spell what they cannot show: SentencePiece shows a space as U+2581 and a byte as <0xHH>.
GPT-2's byte-level alphabet gives every byte one character: printable Latin-1 bytes represent
themselves, the other 68 take U+0100 on, in byte order.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

DEFAULT = "default"  # the name of the chat template that is used when none is named
WITH_TOOLS = "tool_use"  # and of the one some models have for tools


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids with a meaning, and what the vocabulary's publisher says about adding them.

    `eos_ids` holds every id the tokenizer's own configuration calls an end (eos, eot, eom),
    ascending; `eos_id` is the one that chat templates call eos_token. `unk_token` and `pad_token`
    are spellings, for templates alone; `templates` are the chat templates by name. `special_ids`
    are the ids that represent no text of their own and are skipped when text is shown.
    """

    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool = False
    add_eos: bool = False
    special_ids: frozenset[int] = frozenset()
    templates: Mapping[str, str] = field(default_factory=dict)
    unk_token: str = ""
    pad_token: str = ""

    @property
    def chat_template(self) -> str | None:
        """The chat template that is used when none is named."""
        return self.templates.get(DEFAULT)

    @property
    def fullest_template(self) -> str:
        """The chat template that shows most of what the model was taught; "" where it has none."""
        return self.templates.get(WITH_TOOLS) or self.templates.get(DEFAULT, "")


class TextStream(Protocol):
    """Text of a growing id sequence: the pushes and `finish()` joined equal `Codec.decode` of all
    ids at once.
    """

    def push(self, token: int) -> str:
        """Text that no later id can change; may be empty."""
        ...

    def finish(self) -> str:
        """What was held back; unfinished UTF-8 becomes U+FFFD.  Call once, last."""
        ...


class Codec(Protocol):
    """One vocabulary kind.  Ids outside [0, vocab_size) have no piece, no bytes and no text."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`; `parse_special` reads control tokens written out in it, otherwise they are
        plain characters.
        """
        ...

    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        """A stream whose text continues that of `context` (a prompt), which is not repeated."""
        ...

    def token_bytes(self, token: int, special: bool) -> bytes:
        """Bytes the piece adds inside a text (a leading space kept); b"" for special ids unless
        `special`.
        """
        ...

    def piece(self, token: int) -> str:
        """The piece as the vocabulary spells it, "" when there is none."""
        ...


SPACE = "\u2581"
BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _make_alphabet() -> dict[str, int]:
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


BYTE_OF: Mapping[str, int] = MappingProxyType(_make_alphabet())


def decode_piece(piece: str) -> bytes:
    """Bytes of a byte-level piece; one with a character outside the alphabet is plain text."""
    try:
        return bytes([BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode()


CHARACTER_OF: Mapping[int, str] = MappingProxyType({byte: c for c, byte in BYTE_OF.items()})


def encode_bytes(raw: bytes) -> str:
    """Bytes in the byte-level alphabet."""
    return "".join([CHARACTER_OF[byte] for byte in raw])
