"""Freed memory goes back to the system, also below memory that is in use."""

import ctypes
import subprocess
import sys

import pytest

LEAST = 16 << 20  # bytes that are freed

SCRIPT = f"""
from threading import Thread
from flyweight.server.worker.heap import trim_heap

def read_resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

held = []
def allocate():
    pieces = [bytearray(b"x" * (64 << 10)) for _ in range(2 * {LEAST} // (64 << 10))]
    held.append(pieces[-1])

thread = Thread(target=allocate)
thread.start()
thread.join()
before = read_resident()
trim_heap()
print(before - read_resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
def test_free_pages_are_returned() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) > LEAST
