"""What a SentencePiece vocabulary does to a text before it looks for pieces: its compiled map of
characters, and spaces collapsed.

A space stays a space here; the kinds spell it U+2581 and put one in front.
"""

import re
from collections.abc import Callable, Mapping

import numpy as np
from tokenizers import normalizers

from flyweight.errors import CheckpointError
from flyweight.text.gguf import read_flag
from flyweight.text.library import catch_faults, make_encoding_error

MOST_BYTES = 16 << 20
SPACES = re.compile(" {2,}")


def make_normalization(metadata: Mapping[str, object], collapse: bool) -> Callable[[str], str]:
    """The function `tokenizer.ggml.precompiled_charsmap` and `remove_extra_whitespaces` describe;
    `collapse` is the latter where the file does not say.
    """
    charsmap = _load_charsmap(metadata)
    collapse = read_flag(metadata, "remove_extra_whitespaces", collapse)

    def normalize(text: str) -> str:
        if charsmap is not None:
            with catch_faults(make_encoding_error):
                text = charsmap.normalize_str(text)
        return SPACES.sub(" ", text.strip(" ")) if collapse else text

    return normalize


def _load_charsmap(metadata: Mapping[str, object]) -> normalizers.Normalizer | None:
    key = "tokenizer.ggml.precompiled_charsmap"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.dtype.itemsize == 1 and value.dtype.kind in "iu":
        value = value.tobytes()
    if not isinstance(value, bytes) or len(value) > MOST_BYTES:
        raise CheckpointError(f"{key} is not an array of at most {MOST_BYTES} bytes")
    with catch_faults(lambda reason: CheckpointError(f"{key} is not a readable map ({reason})")):
        return normalizers.Precompiled(value) if value else None
