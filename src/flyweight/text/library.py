"""The `tokenizers` library: its calls, with whatever it raises over a file or text as one of our
errors, and the normalization of SentencePiece vocabularies (a compiled map of characters, and
spaces collapsed).

Invariant: interrupts pass. A panic of its Rust code is a BaseException that only its name
distinguishes, since its class cannot be imported.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from tokenizers import Encoding, Tokenizer, normalizers

from flyweight.errors import CheckpointError, FlyweightError, RequestError
from flyweight.text.gguf import read_flag
from flyweight.validation.untrusted import one_line

PANIC = "PanicException"
LONG = 1 << 12  # characters whose reading would hold other threads up


@contextmanager
def catch_faults(refusal: Callable[[str], FlyweightError]) -> Iterator[None]:
    """Turns a fault of the library inside the block into `refusal(reason)`."""
    try:
        yield
    except FlyweightError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise refusal(one_line(str(error)) or type(error).__name__) from None


def encode_text(library: Tokenizer, text: str, add_special: bool = False) -> Encoding:
    """What the library makes of a text; of a long one by the call that lets other threads run."""
    if len(text) < LONG:
        return library.encode(text, add_special_tokens=add_special)
    return library.encode_batch([text], add_special_tokens=add_special)[0]


def make_encoding_error(reason: str) -> RequestError:
    """The library's words are a note of it, for a traceback: clients of a server get none."""
    found = RequestError(": the model's tokenizer cannot encode it", "prompt")
    found.add_note(f"tokenizers: {reason}")
    return found


def make_decoding_error(reason: str) -> CheckpointError:
    return CheckpointError(f"the tokenizer's decoder fails on its own ids ({reason})")


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
