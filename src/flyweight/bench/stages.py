"""Where the time of one request goes, from its text to the text of its answer.

Invariant: stages and `other` add up to the whole: what no timer saw is `other`, which holds the
scheduler, batches and commits.  Timers are those of the engine and its runner; the embedding is one
call a step, timed by an op table around the model's.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any, cast

from flyweight.bench.ours import GREEDY, Recorder, record_steps
from flyweight.build import LoadedModel
from flyweight.engine.engine import Engine
from flyweight.engine.runner import Runner
from flyweight.models.decoder import Decoder
from flyweight.ops.base import Ops
from flyweight.text.detokenizer import Detokenizer
from flyweight.types import Request, Timings

STAGES = ("tokenize", "queue", "embed", "prefill", "decode", "detokenize", "other")


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds, in the order of `STAGES`.  `prefill` and `decode` are the runner's, before and after
    the first token, without the embedding.
    """

    tokenize: float
    queue: float
    embed: float
    prefill: float
    decode: float
    detokenize: float
    other: float

    @property
    def whole(self) -> float:
        return float(sum(astuple(self)))

    def add(self, more: "StageTimes") -> "StageTimes":
        return StageTimes(*(a + b for a, b in zip(astuple(self), astuple(more), strict=True)))


class EmbedClock:
    """An op table around another, which times its embedding."""

    def __init__(self, inner: Ops) -> None:
        self.inner, self.seconds = inner, 0.0

    def embed(self, *given: Any) -> Any:
        start = time.perf_counter()
        result = self.inner.embed(*given)
        self.seconds += time.perf_counter() - start
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def time_embedding(loaded: LoadedModel) -> Iterator[EmbedClock]:
    """The engine's model has a clock until the block ends."""
    runner = loaded.engine.runner
    assert isinstance(runner, Runner) and isinstance(runner.model, Decoder), "a decoder of ours"
    plain, clock = runner.model, EmbedClock(runner.ops)
    parts = replace(plain.parts, ops=cast(Ops, clock))
    runner.model = Decoder(parts, loaded.limits.max_model_len)
    try:
        yield clock
    finally:
        runner.model = plain


class StageMeter:
    """Answers one prompt at a time, greedily, with `answer` tokens."""

    def __init__(self, loaded: LoadedModel, text: str, answer: int) -> None:
        self.loaded, self.text, self.answer = loaded, text, answer

    def measure(self, rounds: int) -> StageTimes:
        """The sum over rounds, after one that does not count."""
        with time_embedding(self.loaded) as clock, record_steps(self.loaded.engine) as recorder:
            self._run(clock, recorder)
            found = [self._run(clock, recorder) for _ in range(rounds)]
        total = found[0]
        for one in found[1:]:
            total = total.add(one)
        return total

    def _run(self, clock: EmbedClock, recorder: Recorder) -> StageTimes:
        clock.seconds = recorder.inside = 0.0
        start = time.perf_counter()
        ids = self.loaded.tokenizer.encode(self.text)
        tokenize = time.perf_counter() - start
        engine = self.loaded.engine
        engine.add(
            Request("0", tuple(ids), GREEDY, max_tokens=self.answer, arrival=time.monotonic())
        )
        reader = StreamReader(engine, Detokenizer(self.loaded.tokenizer, ids))
        first = reader.read_first()
        inside, embed = recorder.inside, clock.seconds
        reader.read_rest()
        whole = time.perf_counter() - start
        queue = first.scheduled - first.arrival
        prefill = inside - embed
        decode = recorder.inside - inside - (clock.seconds - embed)
        known = tokenize + queue + clock.seconds + prefill + decode + reader.seconds
        return StageTimes(
            tokenize, queue, clock.seconds, prefill, decode, reader.seconds, whole - known
        )


class StreamReader:
    """The text of a request's tokens as they come; `seconds` is the time that takes."""

    def __init__(self, engine: Engine, detokenizer: Detokenizer) -> None:
        self.engine, self.detokenizer = engine, detokenizer
        self.seconds, self.text = 0.0, ""

    def read_first(self) -> Timings:
        """Steps to the first token."""
        while True:
            for event in self.engine.step():
                self._take(event.tokens)
                assert event.timings is not None, "they come with the first token"
                return event.timings

    def read_rest(self) -> None:
        """Steps to the end."""
        while self.engine.busy:
            for event in self.engine.step():
                self._take(event.tokens)
        start = time.perf_counter()
        self.text += self.detokenizer.finish()
        self.seconds += time.perf_counter() - start

    def _take(self, tokens: tuple[int, ...]) -> None:
        start = time.perf_counter()
        self.text += self.detokenizer.push(tokens)
        self.seconds += time.perf_counter() - start
