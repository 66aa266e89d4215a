"""Runs windows through an engine, several at once, and gathers their log-probabilities.

Invariant: a window's log-probabilities are the engine's raw ones, in the order of its new tokens;
each window is one request, and only rows of new tokens go through the model's head.  `Take`
functions get those rows' logits, one or more times each.  Knows no text.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from flyweight.driver.loop import Loop
from flyweight.engine.hook import Hook, LogitsRead, RowMarks
from flyweight.engine.step import Chunk
from flyweight.errors import ConfigError, FlyweightError
from flyweight.eval.windows import Window
from flyweight.types import Event, Request, SamplingParams
from flyweight.wire import F32, F64

Report = Callable[[int, int], None]  # tokens scored so far, of how many
MOST_NUMBERS = 1 << 20  # logits given to a `Take` function at once
Take = Callable[[int, F32], None]  # number of the first scored token, logits [R, V] from it on


class LogitsHook(Hook):
    """Gives `take` the logits of every window's new tokens, which are numbered window by window.
    What it raises is kept for `check`: an error within a step would be one of the engine.
    """

    def __init__(self, windows: Sequence[Window], take: Take) -> None:
        self._take = take
        self._error: FlyweightError | None = None
        begin = [0, *accumulate(window.new for window in windows)]
        self._first = {  # by request: the number that the window's own first token would have
            name_request(i): begin[i] + window.new - len(window.tokens)
            for i, window in enumerate(windows)
        }

    def wants(self, request: Request) -> bool:
        return request.id in self._first

    def mark(self, chunks: Sequence[Chunk], marks: RowMarks) -> None:
        for chunk in chunks:
            if not chunk.rows:
                continue
            first = (chunk.scored or chunk.drawn).start
            after = chunk.start + chunk.count - chunk.rows + 1  # place of the first row's successor
            number = self._first[chunk.seq.request.id] + after
            rows = range(first, first + chunk.rows)
            marks.reads.append(LogitsRead(rows, partial(self._give, number)))

    def check(self) -> None:
        """Raises what `take` raised."""
        if self._error is not None:
            raise self._error

    def _give(self, first: int, logits: F32) -> None:
        """A few rows at a time: what is made of them is as large as they are."""
        if self._error is not None:
            return
        count = max(1, MOST_NUMBERS // logits.shape[1])
        try:
            for i in range(0, len(logits), count):
                self._take(first + i, logits[i : i + count])
        except FlyweightError as error:
            self._error = error


def name_request(number: int) -> str:
    """The id of a window's request."""
    return f"window-{number}"


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
            id=name_request(number),
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


def check_finite(model: str, numbers: F32 | F64) -> None:
    """Raises `ConfigError` where a model's numbers are not finite: its weights are broken, or too
    large for the type of its activations.
    """
    if not np.isfinite(numbers).all():
        raise ConfigError(
            "gives logits that are not finite", "model", value=model,
            hint="flyweight check MODEL looks for broken weights",
        )  # fmt: skip


def score_windows(loop: Loop, windows: Sequence[Window], report: Report, model: str) -> list[F64]:
    """The log-probabilities of every window's new tokens; `model` names the model in a refusal.
    Raises `EngineError`, and `ConfigError` where they are not finite.
    """
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
                check_finite(model, found[scores.number])
                done += scores.window.new
        report(done, total)

    collectors: Iterator[WindowScores] = (WindowScores(w, i) for i, w in enumerate(windows))
    report(0, total)
    loop.finish(collectors, take)
    return found
