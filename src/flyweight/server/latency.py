"""Predicts when a request gets its first token and its last, from what the API server knows of an
engine: unread prompts, sequences, and the times of steps and of requests that have ended.

Invariant: nothing is predicted before `LEAST` requests have ended; a prediction changes no answer.
The formula is in docs/deadlines.md.  Knows no HTTP and no deadline.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

from flyweight.engine.moving_line import MovingLine, average
from flyweight.server.engine_client import EngineClient
from flyweight.server.pipe import Gauges

LEAST = 3  # requests that must have ended before a prediction is made
RECENT = 0.05  # weight of the newest step or request in the moving averages, at least
ALIKE_PROMPTS = 10.0**2  # variances of sizes below which little is learned of the cost per token
ALIKE_SEQUENCES = 1.0
FARTHEST = 4.0  # how many times too low or too high the uncorrected times may be taken to be
FRESH = 60.0  # seconds without a measurement after which nothing is refused by a prediction
FULL = 0.05  # share of free blocks below which K/V memory, not seats, limits what runs


@dataclass(frozen=True, slots=True)
class Backlog:
    """What an engine has to do: `prompt_tokens` of requests without a first token, live
    `sequences`, of which `seats` run at a time.
    """

    prompt_tokens: int
    sequences: int
    seats: int


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """What a request adds: tokens of its prompts, its sequences, and most tokens of each."""

    prompt_tokens: int
    sequences: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds from now to the first token and to the last; `alone_ttft` and `alone_e2el` are those
    without other requests.  `prefill` and `decode` are what it takes once it starts.  `raw_ttft`
    and `raw_step` are uncorrected: to the first token, and for a token after it.
    """

    ttft: float
    e2el: float
    alone_ttft: float
    alone_e2el: float
    prefill: float
    decode: float
    raw_ttft: float
    raw_step: float


class Correction:
    """How many times as long as calculated something took, lately."""

    def __init__(self) -> None:
        self.count = 0
        self._measured = self._calculated = 0.0

    def record(self, measured: float, calculated: float) -> None:
        self.count += 1
        weight = max(RECENT, 1 / self.count)
        self._measured = average(self._measured, measured, weight)
        self._calculated = average(self._calculated, calculated, weight)

    @property
    def factor(self) -> float:
        if self._calculated <= 0:
            return 1.0
        return min(max(self._measured / self._calculated, 1 / FARTHEST), FARTHEST)


class LatencyModel:
    """The costs of one engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self._newest = clock, -inf  # when something was measured last
        self.ttft, self.step = Correction(), Correction()
        self._decodes, self._prompts = MovingLine(ALIKE_SEQUENCES), MovingLine(ALIKE_PROMPTS)
        self._steps = [0, 0]  # recorded: without prompts, and with some
        self._chunk = 1  # most prompt tokens that a step had
        self._answers = self._natural = 0.0  # tokens of answers; of those that ended by themselves
        self._ended = self._stopped = 0

    # --- what is learned ---

    def record_step(self, gauges: Gauges) -> None:
        """A step; its prompt tokens cost what it took beyond its decodes."""
        tokens, prompts, seconds = gauges.tokens, gauges.prompt_tokens, gauges.seconds
        if not tokens:
            return
        self._newest = self.clock()
        self._steps[prompts > 0] += 1
        weight = max(RECENT, 1 / self._steps[prompts > 0])
        if not prompts:
            self._decodes.record(tokens, seconds, weight)
            return
        others = min(self._price_decodes(tokens - prompts), seconds / 2)
        self._prompts.record(prompts, seconds - others, weight)
        self._chunk = max(self._chunk, prompts)

    def record_request(self, forecast: Forecast | None, ttft: float, decode: float,
                       tokens: int) -> None:  # fmt: skip
        """A request that ended: `ttft` seconds after its forecast came the first token, and
        `decode` seconds after that the last of a choice's `tokens`.
        """
        if forecast is None:
            return
        self.ttft.record(ttft, forecast.raw_ttft)
        if tokens > 1:
            self.step.record(decode, forecast.raw_step * (tokens - 1))

    def record_answer(self, tokens: int, *, stopped: bool) -> None:
        """An answer's length; whether it ended before max_tokens."""
        self._ended += 1
        self._answers = average(self._answers, tokens, max(RECENT, 1 / self._ended))
        if stopped:
            self._stopped += 1
            self._natural = average(self._natural, tokens, max(RECENT, 1 / self._stopped))

    # --- what is predicted ---

    @property
    def known(self) -> bool:
        """Whether enough was measured to predict."""
        return self.ttft.count >= LEAST

    @property
    def fresh(self) -> bool:
        """Whether that was lately: if all were refused by it, it would never be corrected."""
        return self.known and self.clock() - self._newest <= FRESH

    def forecast(self, backlog: Backlog, work: RequestDemand) -> Forecast | None:
        """None while no step of either kind was measured."""
        if not all(self._steps):
            return None
        seats = max(1, backlog.seats)
        running = min(backlog.sequences, seats)
        queue = self._wait(backlog, work, seats)
        ahead = self._price_prompts(backlog.prompt_tokens + work.prompt_tokens, running)
        own = self._price_prompts(work.prompt_tokens, running)
        step = self._price_decodes(min(running + work.sequences, seats))
        single = self._price_decodes(min(work.sequences, seats))
        later = max(0.0, self.expect(work.max_tokens) - 1)
        slower, longer = self.ttft.factor, self.step.factor
        first = slower * (queue + ahead)
        alone = slower * self._price_prompts(work.prompt_tokens, 0)
        return Forecast(
            ttft=first,
            e2el=first + longer * step * later,
            alone_ttft=alone,
            alone_e2el=alone + longer * single * later,
            prefill=slower * own,
            decode=longer * step * later,
            raw_ttft=queue + ahead,
            raw_step=step,
        )

    def expect(self, max_tokens: int) -> float:
        """Tokens of an answer: as many as those that ended by themselves, at most `max_tokens`."""
        return min(max_tokens, self._natural) if self._stopped else max_tokens

    def _wait(self, backlog: Backlog, work: RequestDemand, seats: int) -> float:
        """Seconds until there are seats: one is free each time an answer ends."""
        excess = max(0, backlog.sequences + min(work.sequences, seats) - seats)
        return excess * self._answers * self._price_decodes(seats) / seats

    def _price_decodes(self, sequences: int) -> float:
        """Seconds of a step without prompts."""
        step, each = self._decodes.fit(0.0, 0.5)
        return step + each * sequences if sequences else 0.0

    def _price_prompts(self, tokens: int, decodes: int) -> float:
        """Seconds of steps that compute so many prompt tokens, with decodes in each."""
        step, each = self._prompts.fit(0.5, 1.0)
        steps = ceil(tokens / self._chunk)
        return steps * (step + self._price_decodes(decodes)) + each * tokens


def measure_backlog(client: EngineClient) -> Backlog:
    """What the engine has to do now; of several replicas, each an even share.  Where K/V memory is
    full, what runs is all that can.
    """
    prompts = sequences = 0
    for stream in client.streams.values():
        request = stream.collector.request
        sequences += max(request.params.n, request.width)
        prompts += 0 if stream.seen else len(request.tokens)
    seats = int(client.facts.get("max_num_seqs", 1))
    replicas = int(client.facts.get("replicas", 1))
    gauges = client.gauges
    if gauges is not None and gauges.waiting and gauges.free_blocks < FULL * gauges.blocks:
        seats = max(1, min(seats, gauges.running // replicas))
    return Backlog(ceil(prompts / replicas), ceil(sequences / replicas), seats)
