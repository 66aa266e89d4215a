"""The device under test: a GPU where there is one, else Triton's interpreter on the CPU.  Without
torch and Triton (extra `cuda`, or `make test-cuda`) these tests are not collected.
"""

import os
from importlib.util import find_spec

import pytest

INSTALLED = find_spec("torch") is not None and find_spec("triton") is not None
collect_ignore_glob = [] if INSTALLED else ["test_*.py"]


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


if INSTALLED and not has_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported
    from interpreter_fixes import correct_interpreter

    correct_interpreter()


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if has_gpu() else "cpu"
