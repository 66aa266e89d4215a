"""Decodes texts with drafts and without, in turns, and counts what became of the drafts.

Invariant: all sides have one engine and the same requests, and give the same tokens; only the time
after the first token of the last request that has room counts.  A side keeps its drafter and its
controller from round to round, as a server does; the first round is not counted.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from flyweight.build import LoadedModel
from flyweight.draft.drafter import Drafter
from flyweight.engine.drafts import Drafts
from flyweight.engine.engine import Engine
from flyweight.engine.hook import LogitsEdit, LogitsRead
from flyweight.engine.runner import ModelRunner, Runner, Ticket
from flyweight.errors import EngineError
from flyweight.prove.spec_texts import SpecPrompt, SpecWorkload, TextLimits
from flyweight.types import Request, SamplingParams
from flyweight.wire import I32, Batch, Sampled

OFF, AGAIN = "off", "off again"  # the second shows what the machine's noise makes of the first
PLAIN = (OFF, AGAIN)
WARM_UP = -1  # the round that is not counted


class ReplayingRunner:
    """A runner around another, whose draws are replaced by the tokens of given texts: the work is
    the model's, the text is not.  A request's seed is the number of its text.
    """

    def __init__(self, inner: ModelRunner, texts: Sequence[Sequence[int]]) -> None:
        self.inner = inner
        sizes = [len(text) for text in texts]
        self._first = np.cumsum([0, *sizes[:-1]])
        self._last = self._first + np.array(sizes) - 1
        self._tokens = np.concatenate([np.array(text, np.int32) for text in texts])

    def submit(
        self,
        batch: Batch,
        moves: tuple[I32, I32] | None = None,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket:
        sampled = self.inner.wait(self.inner.submit(batch, moves, edits, reads))
        text = batch.sampling.seed.astype(np.int64)
        places = np.minimum(self._first[text] + batch.sampling.position, self._last[text])
        return Ticket(replace(sampled, tokens=self._tokens[places]))

    def wait(self, ticket: Ticket) -> Sampled:
        return ticket.sampled


@contextmanager
def replaying(engine: Engine, prompts: Sequence[SpecPrompt], wanted: bool) -> Iterator[None]:
    """The engine's draws are the prompts' answers until the block ends, if that is wanted."""
    inner = engine.runner
    if wanted:
        texts = [[*prompt.tokens, *prompt.answer] for prompt in prompts]
        engine.runner = ReplayingRunner(inner, texts)
    try:
        yield
    finally:
        engine.runner = inner


@dataclass(frozen=True, slots=True)
class SpecRun:
    """One run of a workload: seconds and tokens once the engine is full, what became of draft
    tokens, and for each step the tokens so far and the draft tokens verified for a sequence.
    `without` are the seconds a token without drafts, on the same engine in the same round.
    """

    seconds: float
    tokens: int
    drafts: int
    proposed: int
    accepted: int
    places: tuple[int, ...]
    steps: tuple[tuple[int, float], ...]
    answers: tuple[tuple[int, ...], ...]
    without: float = 0.0

    @property
    def pace(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens


class SpecSide:
    """A drafter with its controller, or none; `taps` are the layers whose states it wants.  No two
    sides of a comparison have the same label.
    """

    def __init__(self, label: str, drafter: Drafter | None, engine: Engine, adaptive: bool) -> None:
        self.label = label
        self.drafts = Drafts(drafter, engine.scheduler, engine.metrics)
        assert isinstance(engine.runner, Runner), "a runner with taps"
        self.drafts.calls.tap = engine.runner.tap
        if drafter is not None and adaptive:
            self.drafts.adapt()
        self.taps = () if drafter is None else tuple(drafter.taps)


class SpecBench:
    """Runs a workload on each side in turns; `replayed` answers are the workload's own."""

    def __init__(
        self,
        loaded: LoadedModel,
        sides: Sequence[SpecSide],
        limits: TextLimits,
        replayed: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.loaded, self.sides, self.limits = loaded, sides, limits
        self.replayed, self.clock = replayed, clock
        self._count = 0  # of requests

    def run(self, work: SpecWorkload, rounds: int) -> dict[str, list[SpecRun]]:
        """By side, a run a round.  Raises `EngineError` where drafts changed a token."""
        found: dict[str, list[SpecRun]] = {side.label: [] for side in self.sides}
        for round in range(WARM_UP, rounds):
            prompts = work.make(self.limits, round)
            order = list(self.sides)
            random.Random(round + 1).shuffle(order)  # so that no side always follows the same one
            runs = {side.label: self._run(side, work, prompts) for side in order}
            for label, run in runs.items():
                if run.answers != runs[OFF].answers:
                    raise EngineError(f"{work.name}: tokens with {label} differ from those without")
                if round != WARM_UP:
                    found[label].append(replace(run, without=runs[OFF].pace))
        return found

    def _run(self, side: SpecSide, work: SpecWorkload, prompts: Sequence[SpecPrompt]) -> SpecRun:
        engine = self.loaded.engine
        engine.drafts = side.drafts
        assert isinstance(engine.runner, Runner), "a runner with taps"
        engine.runner.taps = side.taps  # what no drafter reads costs time
        engine.runner.tap(side.drafts.calls.observes)
        metrics, before = engine.metrics, replace(engine.metrics)
        places = [*side.drafts.places]
        answers: dict[str, list[int]] = {}
        for i, prompt in enumerate(prompts):
            request = self._make_request(i, prompt, work, side.label)
            answers[request.id] = []
            engine.add(request)
        steps: list[tuple[int, float]] = []
        began, early, proposed = 0.0, 0, before.proposed
        at_once = min(len(prompts), engine.scheduler.limits.max_num_seqs)
        with replaying(engine, prompts, self.replayed):
            while engine.busy:
                for event in engine.step():
                    answers[event.id] += event.tokens
                made = sum(len(answer) for answer in answers.values())
                if not began and sum(map(bool, answers.values())) >= at_once:
                    began, early = self.clock(), made
                steps.append((made, (metrics.proposed - proposed) / at_once))
                proposed = metrics.proposed
        seconds = self.clock() - began
        places += [0] * (len(side.drafts.places) - len(places))
        return SpecRun(
            seconds,
            made - early,
            metrics.drafts - before.drafts,
            metrics.proposed - before.proposed,
            metrics.accepted - before.accepted,
            tuple(now - then for now, then in zip(side.drafts.places, places, strict=True)),
            tuple(steps),
            tuple(tuple(answer) for answer in answers.values()),
        )

    def _make_request(
        self, number: int, prompt: SpecPrompt, work: SpecWorkload, salt: str
    ) -> Request:
        self._count += 1
        hot = 1.0 if work.random and not self.replayed else 0.0
        params = SamplingParams(temperature=hot, ignore_eos=True)
        answer = len(prompt.answer)
        return Request(
            f"{self._count}",
            tuple(prompt.tokens),
            params,
            max_tokens=answer,
            seed=number,
            salt=salt,
        )
