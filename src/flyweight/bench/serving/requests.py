"""One request of a load, and what it came to: when its chunks arrived, how many tokens they held,
or why it failed.

Invariant: a `LoadRequest` says all that an API needs to make its body; equal seeds make equal
requests. Times are of the arrival of bytes; `tokens` is what the server counted, or the number of
chunks where it does not say.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A prompt of `length` tokens, `output` tokens wanted; `at` seconds after the start where a
    trace says so.
    """

    prompt: Prompt
    length: int
    output: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestManner:
    """What all requests of a load have in common: the model's name, or several that take turns, and
    fields of the body.
    """

    models: tuple[str, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    logprobs: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StreamedAnswer:
    """Filled while a request is served.  `times` has a moment for every chunk with a part of the
    answer.
    """

    start: float = 0.0
    end: float = 0.0
    times: "array[float]" = field(default_factory=lambda: array("d"))
    texts: list[str] = field(default_factory=list)
    counted: int | None = None
    prompt_counted: int | None = None
    complete: bool = False
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and self.complete and bool(self.times)

    @property
    def tokens(self) -> int:
        return len(self.times) if self.counted is None else self.counted

    @property
    def ttft(self) -> float:
        return self.times[0] - self.start if self.times else 0.0

    @property
    def itls(self) -> list[float]:
        """Seconds between neighbouring chunks."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def latency(self) -> float:
        """From sending to the last part of the answer."""
        return self.times[-1] - self.start if self.times else self.end - self.start

    @property
    def tpot(self) -> float:
        """Seconds of a token after the first."""
        return (self.latency - self.ttft) / max(1, self.tokens - 1)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def fail(self, why: str) -> None:
        """The first reason stays."""
        self.error = self.error or why
