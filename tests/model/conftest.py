"""Backends for model tests: the reference, and the native kernels once per instruction set this
machine has.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.reference import ReferenceOps

sys.path.insert(0, str(Path(__file__).parent))

from families import Report


@pytest.fixture(params=["reference", *available_isas()])
def backend(request: pytest.FixtureRequest) -> Ops:
    return ReferenceOps("f32") if request.param == "reference" else CpuOps(2, request.param, "f32")


@pytest.fixture
def native() -> Ops:
    return CpuOps(2, None, "f32")


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    """Collects what the families' tests measured; `--models-table` writes it to docs/models.md."""
    found = Report()
    yield found
    if request.config.getoption("--models-table"):
        found.write()
