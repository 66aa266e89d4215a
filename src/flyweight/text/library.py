"""The `tokenizers` library at arm's length: whatever it raises over somebody's file or text becomes
one of our errors.

Invariant: interrupts pass. A panic of its Rust code is a BaseException that only its name tells
apart, since its class cannot be imported.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenizers import Encoding, Tokenizer

from flyweight.errors import CheckpointError, FlyweightError, RequestError
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
