"""Limits sampled in milliseconds: no test looks at what they are."""

from collections.abc import Iterator

import pytest

from flyweight.bench import limits


@pytest.fixture(autouse=True, scope="session")
def quick_limits() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(limits, "LEAST_BYTES", 4 << 20)
    patch.setattr(limits, "REPEATS", 1)
    yield
    patch.undo()
