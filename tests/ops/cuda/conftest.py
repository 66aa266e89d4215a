"""The device under test: a GPU where there is one, else Triton's interpreter on the CPU.  Skipped
where torch and Triton are not installed.
"""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `cuda`)")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported
pytest.importorskip("triton", reason="triton is not installed (extra `cuda`)")


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
