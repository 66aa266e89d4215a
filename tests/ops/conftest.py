"""Backends under test: the reference, and the native kernels once per instruction set."""

from collections.abc import Callable

import pytest

from flyweight.ops.base import Ops
from flyweight.ops.reference import ReferenceOps

Make = Callable[..., Ops]


def _native() -> list[str]:
    try:
        from flyweight.ops.cpu import available_isas
    except ImportError:  # the native module is not built here
        return []
    return list(available_isas())


NATIVE = _native()


def _make(backend: str) -> Make:
    def make(activations: str = "f32", threads: int = 2) -> Ops:
        if backend == "reference":
            return ReferenceOps(activations)
        from flyweight.ops.cpu import CpuOps

        return CpuOps(threads, backend, activations)

    return make


@pytest.fixture(scope="session", params=["reference", *NATIVE])
def make(request: pytest.FixtureRequest) -> Make:
    """make(activations, threads) -> a fresh backend; every backend in turn."""
    return _make(request.param)


@pytest.fixture(
    scope="session",
    params=NATIVE or [pytest.param("none", marks=pytest.mark.skip("no native module"))],
)
def native(request: pytest.FixtureRequest) -> Make:
    """The same for the native backends only: what is compared with the reference."""
    return _make(request.param)
