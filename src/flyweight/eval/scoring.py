"""Runs windows through an engine, several at once, and gathers their log-probabilities.

Invariant: a window's log-probabilities are the engine's raw ones, in the order of its new tokens;
each window is one request, and only rows of new tokens go through the model's head.  Knows no text.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flyweight.driver.loop import Loop
from flyweight.errors import FlyweightError
from flyweight.eval.windows import Window
from flyweight.types import Event, Request, SamplingParams
from flyweight.wire import F64

Report = Callable[[int, int], None]  # tokens scored so far, of how many


class WindowScores:
    """Takes the events of one window's request."""

    def __init__(self, window: Window, number: int) -> None:
        """The last token is not part of the prompt: its log-probability is that of an id that is
        listed where the only token is drawn.
        """
        self.window, self.number = window, number
        *known, last = window.tokens
        params = SamplingParams(temperature=0, prompt_logprobs=0, logprob_token_ids=[last])
        self.request = Request(
            id=f"window-{number}",
            tokens=tuple(known),
            params=params,
            max_tokens=1,
            score_from=len(known) - window.new,
        )
        self.finished = False
        self.logprobs: list[float] = []
        self.error: FlyweightError | None = None

    def feed(self, event: Event) -> bool:
        self.logprobs += [scored.chosen for scored in event.prompt_logprobs]
        self.logprobs += [scored.top[0] for scored in event.logprobs]
        self.error = self.error or event.error
        self.finished = event.finish is not None
        return False

    def take_next(self) -> Request | None:
        return None


def score_windows(loop: Loop, windows: Sequence[Window], report: Report) -> list[F64]:
    """The log-probabilities of every window's new tokens.  Raises `EngineError`."""
    total, done = sum(window.new for window in windows), 0
    found: list[F64] = [np.zeros(0)] * len(windows)

    def take(news: Sequence[WindowScores]) -> None:
        nonlocal done
        for scores in news:
            if scores.error is not None:
                raise scores.error
            if scores.finished:
                assert len(scores.logprobs) == scores.window.new, "a token was not scored"
                found[scores.number] = np.array(scores.logprobs)
                done += scores.window.new
        report(done, total)

    collectors: Iterator[WindowScores] = (WindowScores(w, i) for i, w in enumerate(windows))
    report(0, total)
    loop.finish(collectors, take)
    return found
