"""Which prompts go to a prefill server first, and when it is given up, on a simulated clock."""

from typing import Any

import pytest

from flyweight.errors import ConfigError
from flyweight.routing.handoff import LEAST, SLACK, Handoff, HandoffOptions, PrefillHandoff

B = 4


class Split:
    """Prompts as chains of keys; the clock is the test's."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        chosen = {"threshold": 10, "block_size": B, "rate": 50.0, **options}
        self.handoff = PrefillHandoff(HandoffOptions(**chosen), lambda: self.now)

    def begin(self, tokens: int, name: str = "a") -> Handoff | None:
        return self.handoff.begin(
            [f"{name} {i}".encode() for i in range((tokens - 1) // B)], tokens
        )

    def must(self, tokens: int, name: str = "a") -> Handoff:
        found = self.begin(tokens, name)
        assert found is not None
        return found


def test_long_prompts_are_handed_over() -> None:
    assert Split().begin(9) is None
    assert Split().must(10).tokens == 10


def test_what_the_decode_server_has_does_not_count() -> None:
    split = Split()
    assert split.must(33).tokens == 33
    assert split.begin(41) is None, "eight blocks of it are known: nine tokens are left"
    assert split.must(53).tokens == 53 - 40
    assert split.must(33, "b").tokens == 33


def test_short_prompts_are_remembered_too() -> None:
    split = Split()
    assert split.begin(9) is None and split.begin(17) is None and split.begin(25) is None


def test_the_decode_servers_cache_is_bounded() -> None:
    split = Split(blocks=8)
    split.must(33)
    split.must(33, "b")
    assert split.must(33).tokens == 33


def test_the_limit_follows_from_the_rate_and_the_work_ahead() -> None:
    split = Split()
    first, second = split.must(50), split.must(100, "b")
    assert first.limit == pytest.approx(LEAST + SLACK * 1.0) and first.ahead == 0
    assert second.limit == pytest.approx(LEAST + SLACK * 3.0) and second.ahead == 50
    split.handoff.finish(first)
    split.handoff.cancel(second)
    assert split.handoff.outstanding == 0


def test_the_rate_is_measured() -> None:
    split = Split()
    first = split.must(50)
    split.now += 0.1
    split.handoff.finish(first, 50)
    assert split.handoff.seconds == pytest.approx(0.1 / 50), "the first replaces what was assumed"
    second = split.must(50, "b")
    split.now += 0.3
    split.handoff.finish(second, 50)
    assert split.handoff.seconds == pytest.approx((0.1 + 0.3) / 2 / 50)


def test_a_cached_prompt_says_nothing_of_the_rate() -> None:
    split = Split()
    split.handoff.finish(split.must(50), 4)
    assert split.handoff.seconds == 1 / 50


def test_a_server_that_failed_is_left_alone_longer_each_time() -> None:
    split, waits = Split(), []
    for number in range(8):
        split.handoff.fail(split.must(50, f"prompt {number}"))
        began = split.now
        while split.begin(9 + B * 50, f"{number} at {split.now}") is None:
            split.now += 0.5
        waits.append(split.now - began)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_hand_offs_that_fail_together_count_once() -> None:
    split = Split()
    begun = [split.must(50, str(i)) for i in range(5)]
    split.now += 1
    for one in begun:
        split.handoff.fail(one)
    assert split.begin(50, "x") is None and split.handoff.outstanding == 0
    split.now += 1
    split.handoff.finish(split.must(50, "y"))
    split.handoff.fail(split.must(50, "z"))
    split.now += 1
    assert split.begin(50, "after an answer the wait is short again") is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [("threshold", 0), ("blocks", 0), ("block_size", 0), ("rate", 0.0), ("rate", float("nan"))],
)
def test_bad_options_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        HandoffOptions(**{name: value})  # type: ignore[arg-type]
