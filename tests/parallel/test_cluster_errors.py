"""Errors of a cluster as lines of ours."""

import pytest

from flyweight.errors import ConfigError, EngineError
from flyweight.parallel.cluster_errors import LONGEST, describe_error, explain_errors


class TaskError(Exception):
    """As Ray has them: the text has a traceback of another process."""

    def __init__(self, cause: Exception | str) -> None:
        super().__init__("ray::Controller.deploy() (pid=7)\n  File x, line 3\nValueError: bad")
        self.cause = cause


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("one\ntwo"), "one"),
        (RuntimeError("Traceback (most recent call last):\n  File x\nValueError: bad\n"),
         "ValueError: bad"),
        (TaskError(ValueError("bad\nvalue")), "bad"),
        (TaskError("no exception"), "ray::Controller.deploy() (pid=7)"),
        (KeyError(), "KeyError"),
        (TimeoutError(), "TimeoutError"),
        (OSError(5, "cut"), "[Errno 5] cut"),
        (RuntimeError("x" * 1000), "x" * LONGEST),
    ],
)  # fmt: skip
def test_any_error_becomes_one_line(error: Exception, words: str) -> None:
    assert describe_error(error) == words
    with pytest.raises(EngineError) as found, explain_errors():
        raise error
    assert str(found.value) == words


def test_errors_of_ours_stay() -> None:
    error = ConfigError("long " * 100, "--replicas", value=3)
    with pytest.raises(ConfigError) as found, explain_errors():
        raise error
    assert found.value is error and describe_error(error) == str(error)
