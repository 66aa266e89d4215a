"""The shape that a model was compiled for: sequences at once, and tokens of prompts and answers.

It is stored next to the packed weights and removed with them.  Requests outside it are served, and
counted.  A file that is not ours, or not as `write_shape` leaves it, is no shape.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISREG
from tempfile import mkstemp
from typing import Any, Self

SUFFIX = ".shape"
MOST_BYTES = 1 << 10  # of the file
MOST = 1 << 23  # of a limit, as in `flyweight compile`


@dataclass(frozen=True, slots=True)
class CompiledShape:
    """The limits given to `flyweight compile`."""

    max_batch_size: int
    max_input_len: int
    max_output_len: int

    @classmethod
    def of(cls, values: Any) -> Self | None:
        """None where `values` are not three numbers that a limit can be, under these names."""
        if not isinstance(values, Mapping) or set(values) != set(cls.__slots__):
            return None
        good = all(type(n) is int and 0 < n <= MOST for n in values.values())
        return cls(**values) if good else None

    def __str__(self) -> str:
        return (
            f"{self.max_batch_size} sequences of {self.max_input_len} tokens "
            f"and {self.max_output_len} of answer"
        )


def write_shape(kept: Path, shape: CompiledShape) -> None:
    """Writes the shape next to a file of packed weights.  Raises `OSError`."""
    file, partial = mkstemp(dir=kept.parent)
    try:
        with open(file, "w") as written:
            json.dump(asdict(shape), written)
        os.replace(partial, kept.with_suffix(SUFFIX))
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def read_shape(kept: Path) -> CompiledShape | None:
    """The shape written there; None without one."""
    with suppress(OSError, ValueError, RecursionError):
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(kept.with_suffix(SUFFIX), flags)
        with open(file, "rb") as opened:
            about = os.fstat(file)
            if S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
                return CompiledShape.of(json.loads(opened.read(MOST_BYTES)))
    return None


def drop_shape(kept: Path) -> None:
    """Removes it, where there is one."""
    with suppress(OSError):
        kept.with_suffix(SUFFIX).unlink()
