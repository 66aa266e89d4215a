"""The vocabulary of a model that comes without one: enough to look at the model, not to run it.

Invariant: it has no ids, so nothing has a piece, and no text can be encoded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flyweight.errors import CheckpointError
from flyweight.text.codec import SpecialIds, TextStream
from flyweight.text.tokenizer import Tokenizer, has_vocabulary, load_tokenizer


class EmptyCodec:
    """A `Codec` without ids."""

    vocab_size = 0

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raise CheckpointError("no tokenizer here")

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return ""

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        raise CheckpointError("no tokenizer here")

    def token_bytes(self, token: int, special: bool) -> bytes:
        return b""

    def piece(self, token: int) -> str:
        return ""


def load_any_tokenizer(source: Path | Mapping[str, object]) -> Tokenizer:
    """The tokenizer of a model, or one without ids where the model has none.  Raises
    `CheckpointError` for damaged files.
    """
    if has_vocabulary(source):
        return load_tokenizer(source)
    return Tokenizer(EmptyCodec(), SpecialIds())
