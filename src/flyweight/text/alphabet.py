"""How pieces spell what they cannot show: spaces, single bytes, and whole texts of bytes.

SentencePiece shows a space as U+2581 and a byte as <0xHH>.  GPT-2's byte-level alphabet gives every
byte one character: printable Latin-1 bytes stand for themselves, the other 68 take U+0100 on, in
byte order.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

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
