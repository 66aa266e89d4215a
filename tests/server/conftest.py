"""One server for the tests that only ask."""

from collections.abc import Iterator

import pytest

from http_server import Running, started


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """The model inside, with nothing set."""
    with started() as running:
        yield running
