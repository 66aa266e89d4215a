"""Fixtures over the small vocabularies."""

import pytest
from text_vocabularies import SMALL

from flyweight.text.tokenizer import Tokenizer


@pytest.fixture(scope="session", params=sorted(SMALL))
def small(request: pytest.FixtureRequest) -> Tokenizer:
    """Each small vocabulary in turn."""
    return SMALL[request.param]()


@pytest.fixture(scope="session")
def spm() -> Tokenizer:
    return SMALL["spm"]()


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return SMALL["bpe"]()
