"""One server for the tests that only ask."""

from collections.abc import Iterator

import pytest

import chat_model
from http_server import Running, started


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """The model inside, with nothing set."""
    with started() as running:
        yield running


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same with a chat template."""
    path = chat_model.write(tmp_path_factory.mktemp("talker") / "talker.gguf")
    with started(str(path), "--max-model-len", "512") as running:
        yield running


@pytest.fixture(scope="session")
def calm() -> Iterator[Running]:
    """One that nobody attacks: what /health takes on this machine at this moment."""
    with started() as running:
        yield running
