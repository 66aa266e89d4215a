"""Returns freed memory to the system.

glibc keeps what is freed below memory in use, in one arena for each thread that has loaded a model.
Without this, a process grows with its loads although it does not use more.
"""

import ctypes
from contextlib import suppress


def trim_heap() -> None:
    """Returns all free pages of the heap; does nothing where the C library cannot."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
