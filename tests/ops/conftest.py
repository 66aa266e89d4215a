"""Backends under test: the reference, and the native kernels once per instruction set."""

import pytest
from op_cases import Make

from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.reference import ReferenceOps


def _make(backend: str) -> Make:
    def make(activations: str = "f32", threads: int = 2) -> Ops:
        if backend == "reference":
            return ReferenceOps(activations)
        return CpuOps(threads, backend, activations)

    return make


@pytest.fixture(scope="session", params=["reference", *available_isas()])
def make(request: pytest.FixtureRequest) -> Make:
    """make(activations, threads) -> a fresh backend; every backend in turn."""
    return _make(request.param)


@pytest.fixture(scope="session", params=available_isas())
def native(request: pytest.FixtureRequest) -> Make:
    """The same for the native backends only: what is compared with the reference."""
    return _make(request.param)
