"""Durations as users write them."""

import pytest

from flyweight.errors import ConfigError
from flyweight.validation.durations import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1.0), ("60ms", 0.06), ("0.25", 0.25), ("2 min", 120.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds("ttft", text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "word"),
    [("fast", "not a duration"), ("0s", "nearest valid: 1ms"), ("2h", "not a duration"),
     ("7200s", "nearest valid: 3600s")],
)  # fmt: skip
def test_bad_durations(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_seconds("ttft", text)
