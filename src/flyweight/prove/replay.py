"""Runs requests on an engine at their times, and notes when each token came.

Invariant: a request is added between two steps, and its time to the first token counts from when it
was due, not from when it was added.  Greedy, and of the requested length.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from flyweight.bench.ours import GREEDY
from flyweight.build import LoadedModel
from flyweight.errors import EngineError
from flyweight.params.tasks import BeamSearchParams
from flyweight.prove.technique import Answer, Measurement
from flyweight.types import Event, Request


@dataclass(frozen=True, slots=True)
class TimedPrompt:
    """A prompt that is due `at` seconds after the start; times of a `judged` one are reported.
    With `beams` it is answered by a search, whose answers come together.
    """

    tokens: Sequence[int]
    answer: int
    at: float = 0.0
    judged: bool = True
    beams: int = 0


class TokenTimes:
    """The tokens of one request so far, and when they came."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.tokens: list[int] = []
        self.ttft = self._last = 0.0
        self.itls: list[float] = []

    def add(self, tokens: Answer, now: float) -> None:
        """Tokens that came together share the time since those before them."""
        if not tokens:
            return
        if not self.tokens:
            self.ttft = now - self.due
        else:
            self.itls += [(now - self._last) / len(tokens)] * len(tokens)
        self._last = now
        self.tokens += tokens


def replay(loaded: LoadedModel, prompts: Sequence[TimedPrompt]) -> Measurement:
    """All of them, from an empty prefix cache."""
    engine = loaded.engine
    engine.scheduler.pool.forget()
    coming = sorted(range(len(prompts)), key=lambda i: prompts[i].at)
    times = [TokenTimes(prompt.at) for prompt in prompts]
    start, at = time.perf_counter(), 0
    while at < len(coming) or engine.busy:
        now = time.perf_counter() - start
        while at < len(coming) and prompts[coming[at]].at <= now:
            engine.add(make_request(coming[at], prompts[coming[at]]))
            at += 1
        if not engine.busy:
            time.sleep(max(0.0, prompts[coming[at]].at - now))
            continue
        events = engine.step()
        now = time.perf_counter() - start
        for event in events:
            times[int(event.id)].add(read_tokens(event), now)
    seconds = time.perf_counter() - start
    return summarize(prompts, times, seconds)


def make_request(index: int, prompt: TimedPrompt) -> Request:
    beam = BeamSearchParams(prompt.beams, prompt.answer, ignore_eos=True) if prompt.beams else None
    return Request(str(index), tuple(prompt.tokens), GREEDY, max_tokens=prompt.answer, beam=beam)


def read_tokens(event: Event) -> Answer:
    """An event's tokens.  Raises what ended the request."""
    if event.error is not None:
        raise EngineError(f"request {event.id} failed: {event.error}")
    return event.tokens


def summarize(
    prompts: Sequence[TimedPrompt], times: Sequence[TokenTimes], seconds: float
) -> Measurement:
    pairs = list(zip(prompts, times, strict=True))
    judged = [one for prompt, one in pairs if prompt.judged and not prompt.beams]
    return Measurement(
        seconds,
        sum(1 for one in times if one.tokens),
        sum(len(prompt.tokens) for prompt in prompts),
        sum(len(one.tokens) for one in times),
        ttfts=tuple(one.ttft for one in judged if one.tokens),
        itls=tuple(gap for one in judged for gap in one.itls),
        answers=tuple(tuple(one.tokens) for one in times),
    )
