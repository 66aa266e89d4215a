"""Random workloads, and a harness that runs one through the engine and checks every step and every
answer.

Whatever is wrong raises `Wrong` (or an assertion of ours), so a test can tell that a seeded bug was
caught.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mock_blocks import MockExternal
from oracle import VOCAB, MockRunner, answer, scores, search, vector
from oracle_drafter import OracleDrafter

from flyweight.config import Limits
from flyweight.draft.drafter import Drafter
from flyweight.draft.ngram import NgramDrafter
from flyweight.engine.engine import Engine
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import SequenceState
from flyweight.engine.step import Plan, StepBudget
from flyweight.kv.blocks import BlockPool, Table
from flyweight.kv.store import BlockStore
from flyweight.params.repetition import RepetitionDetectionParams
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.types import Event, Finish, Request, RequestWords, SamplingParams, ThinkingBudget

CIRCLES = RepetitionDetectionParams(max_pattern_size=3, min_pattern_size=1, min_count=2)


class Wrong(AssertionError):
    """The engine broke a promise."""


def require(ok: object, message: str) -> None:
    if not ok:
        raise Wrong(message)


@dataclass(frozen=True)
class Workload:
    """What arrives and what is aborted (all choices, or one), by step."""

    limits: Limits
    arrivals: Mapping[int, list[Request]]
    aborts: Mapping[int, list[tuple[str, int | None]]]
    guesses: str  # "none", "ngram", or the oracle's with some wrong
    seed: int
    crowds: bool = False  # whether decodes may sit out some steps

    @property
    def requests(self) -> list[Request]:
        return [r for at in sorted(self.arrivals) for r in self.arrivals[at]]


def workload(seed: int, searches: float = 0.2) -> Workload:
    """A small world: few tokens, few stems, hardly enough memory.  That share of the requests are
    searches; where most are, there are more of them, with longer answers, and more seats than
    blocks.
    """
    rng = random.Random(seed)
    stems = [[rng.randrange(VOCAB) for _ in range(14)] for _ in range(2)]
    crowd = searches > 0.5
    many = rng.randint(3, 8) + 5 * crowd
    requests = [_request(rng, i, stems, searches) for i in range(many)]
    size = rng.choice((1, 2, 3, 4))
    seqs = max(rng.randint(1, 6) + 6 * crowd, *(r.width for r in requests))
    least = max(_least(r, size) for r in requests)
    limits = Limits(
        max_model_len=64,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + rng.randint(0, 8),
        block_size=size,
        blocks=least + rng.randint(0, 2 if crowd else least),
        prefix_caching=rng.random() < 0.9,
        max_chunk=rng.choice((None, None, 1, 3)),
        draft_tokens=rng.randint(1, 4),
        hidden_rows=rng.choice((256, 1, 3)),
        scored=rng.randint(1, 5),
    )
    arrivals: dict[int, list[Request]] = {}
    aborts: dict[int, list[tuple[str, int | None]]] = {}
    for r in requests:
        at = rng.randint(0, 12)
        arrivals.setdefault(at, []).append(r)
        if rng.random() < 0.25:
            index = rng.choice((None, rng.randrange(r.params.n)))
            aborts.setdefault(at + rng.randint(1, 5), []).append((r.id, index))
    guesses = rng.choice(("none", "ngram", "oracle", "oracle"))
    return Workload(limits, arrivals, aborts, guesses, seed, crowds=rng.random() < 0.4)


def _least(request: Request, size: int) -> int:
    """Blocks without which it is refused."""
    drawn = max(0, request.max_tokens - 1)  # the last token is never computed
    own = -(-(len(request.tokens) + drawn) // size)
    return own if request.width == 1 else request.width * (own + 1)


def _request(rng: random.Random, i: int, stems: list[list[int]], searches: float) -> Request:
    stem = rng.choice(stems)[: rng.randint(0, 14)]
    tail = [rng.randrange(VOCAB) for _ in range(rng.randint(0 if stem else 1, 5))]
    most = rng.randint(1, 10)
    stop = frozenset(rng.sample(range(VOCAB), rng.choice((0, 0, 1, 2))))
    params = SamplingParams(
        n=rng.choice((1, 1, 2, 3)),
        max_tokens=most,
        min_tokens=rng.choice((0, 0, rng.randint(0, most))),
        prompt_logprobs=rng.choice((None, None, None, 0)),
        repetition_detection=rng.choice((None, None, None, CIRCLES)),
    )
    pooling = None
    if rng.random() < 0.15:
        pooling = PoolingParams(rng.choice(("mean", "last")), normalize=False)
        params, most = SamplingParams(), 0
    beam = None
    if pooling is None and rng.random() < searches:
        params = SamplingParams(temperature=0)
        most += 8 * (searches > 0.5)
        beam = BeamSearchParams(
            beam_width=rng.choice((2, 2, 3)) if searches > 0.5 else rng.randint(2, 4),
            length_penalty=rng.choice((0.5, 1.0, 2.0)),
            early_stopping=rng.choice((True, False, "never")),
        )
    thought = None
    if pooling is None and beam is None and rng.random() < 0.4:
        inside = rng.choice((None, 0, 0, 2))
        parts = {0: b"<", 1: b"/", 2: b">"}
        budget = rng.randint(0, 4)
        thought = ThinkingBudget(
            budget, inside is not None, inside or 0, b"<", b"/>", (1, 2), parts
        )
    return Request(
        id=f"r{i}",
        tokens=tuple(stem + tail),
        params=params,
        stop_ids=stop,
        words=RequestWords(thought=thought),
        max_tokens=most,
        pooling=pooling,
        beam=beam,
        seed=rng.randrange(3),
        priority=rng.choice((0, 0, 0, 1, -1) if searches <= 0.5 else range(-3, 4)),
        salt=rng.choice(("", "", "a")),
        adapter=rng.choice(("", "", "", "x")),
    )


@dataclass(frozen=True)
class Parts:
    """What the harness builds an engine of; a seeded bug replaces one."""

    scheduler: Callable[..., Scheduler] = Scheduler
    pool: Callable[..., BlockPool] = BlockPool
    store: Callable[..., BlockStore] = BlockStore


@dataclass
class Harness:
    """One workload, run step by step."""

    work: Workload
    parts: Parts = field(default_factory=Parts)
    counts: Counter[str] = field(default_factory=Counter)
    slowness: int = 1  # times as many steps may be needed

    def __post_init__(self) -> None:
        limits = self.work.limits
        pool = self.parts.pool(limits.blocks, limits.block_size)
        self.scheduler = self.parts.scheduler(limits, pool, clock=self._clock)
        runner = MockRunner(limits.blocks, limits.block_size)
        self.now, self.skipped = 0.0, False  # whether decodes skipped the newest plan
        self.tenant: dict[int, tuple[str, str]] = {}
        self.external = MockExternal(self.work.seed, pool, runner, self.tenant, self._clock)
        cache = self.external.make(self.parts.store) if limits.prefix_caching else None
        self.engine = Engine(
            self.scheduler, runner, self._drafter(), self.external.metrics, ("x",), external=cache
        )
        self.external.teach(self.work.requests, self.scheduler.prefix.find_root)
        self.crowds = random.Random(self.work.seed)
        self.texts: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], Finish] = {}
        self.vectors: dict[tuple[str, int], object] = {}
        self.ranked: dict[tuple[str, int], float | None] = {}
        self.cached: dict[str, int] = {}
        self.scores: dict[str, list[float]] = {}
        self.watched, self.scheduler.schedule = self.scheduler.schedule, self._schedule  # type: ignore[method-assign]

    def run(self) -> None:
        """Runs to the end.  The oldest sequence advances in every step, or every second one: that
        bounds them.
        """
        work, last = self.work, max([*self.work.arrivals, *self.work.aborts])
        bound = (
            last
            + 1
            + sum((len(r.tokens) + r.max_tokens) * r.params.n * r.width for r in work.requests)
            * (1 + work.crowds)
            * self.slowness
        )
        waits = 10 * sum(r.params.n * r.width for r in work.requests)  # of peers
        bound += waits * bool(self.external.remote)
        step = 0
        while step <= last or self.engine.busy:
            require(step <= bound, f"no end after {step} steps")
            for id, index in work.aborts.get(step, ()):
                self._abort(id, index)
            for request in work.arrivals.get(step, ()):
                self.engine.add(request)
            before, busy = self.engine.metrics.computed, self.engine.busy
            for event in self.engine.step():
                self._take(event)
            advanced = self.engine.metrics.computed > before or self.external.waiting
            require(not busy or advanced, "a step without progress")
            self.external.save_some()
            self._check_pool()
            size, live = work.limits.block_size, self.scheduler.running
            needed = [(len(s.table.blocks) - 1) * size < len(s.tokens) for s in live]
            require(all(needed), "blocks beyond the known tokens")
            step += 1
        self._check_end()
        self.engine.close()

    # --- checks ---

    def _schedule(self, budget: StepBudget) -> Plan:
        """The scheduler's plan, checked against the limits."""
        s, limits = self.scheduler, self.work.limits
        before = {id(seq) for seq in s.running}
        skip = self.work.crowds and self.crowds.random() < 0.5
        most = limits.max_num_batched_tokens
        plan = self.watched(StepBudget(most, most if skip else 0))
        alone = plan.prefill_only
        require(not (alone and self.skipped), "decodes skipped two steps in succession")
        require(not alone or (skip and not plan.preempted), "decodes skipped a step for nothing")
        self.skipped = alone
        self.counts["prefill-only"] += alone
        require(len(s.running) <= limits.max_num_seqs, "too many sequences")
        used = sum(c.count for c in plan.chunks)
        require(used <= limits.max_num_batched_tokens, "too many tokens")
        hidden = sum(len(c.hidden) for c in plan.chunks)
        require(hidden == plan.hidden <= limits.hidden_rows, "too many hidden states")
        scored = sum(len(c.scored) for c in plan.chunks)
        require(scored == plan.scored <= limits.scored, "too many scored rows")
        self.counts["scored rows"] += scored
        planned = {id(c.seq) for c in plan.chunks}
        require(len(planned) == len(plan.chunks), "a sequence planned twice")
        for seq in s.running:
            decode = seq.computed + 1 == len(seq.tokens) and seq.request.pooling is None
            require(not decode or alone or id(seq) in planned, "a decode without its token")
        for c in plan.chunks:
            require(c.seq.state is SequenceState.RUNNING and c.count > 0, "a chunk of nothing")
            prefill = c.count - len(c.seq.draft) > 1
            require(not prefill or c.count <= (limits.max_chunk or c.count), "chunk too long")
            hit, full = c.start // limits.block_size, (len(c.seq.tokens) - 1) // limits.block_size
            self.counts["partial hit"] += id(c.seq) not in before and not c.copy and 0 < hit < full
            self._check_tenant(c.seq.table, c.start, c.start + c.count, c.seq.request)
        return plan

    def _check_tenant(self, table: Table, start: int, stop: int, request: Request) -> None:
        """Nobody reads a block that another tenant or adapter wrote."""
        own, size = (request.salt, request.adapter), self.work.limits.block_size
        for block in table.blocks[start // size : -(-stop // size)]:
            self.tenant[block] = own
        for block in table.blocks[: start // size]:
            require(self.tenant.get(block) == own, f"block {block} leaked")

    def _check_pool(self) -> None:
        s = self.scheduler
        require(all(not seq.table.blocks for seq in s.waiting), "a waiting sequence holds blocks")
        s.pool.check_integrity([seq.table for seq in s.running])

    def _take(self, event: Event) -> None:
        key = (event.id, event.index)
        require(key not in self.finished, "an event after the last")
        known = self.scores.setdefault(event.id, [])
        known.extend(x.chosen for x in event.prompt_logprobs)
        late = event.index or self.texts.get(key)
        require(not (event.prompt_logprobs and late), "scores come first, and once a request")
        self.texts.setdefault(key, []).extend(event.tokens)
        self.vectors[key] = event.vector
        self.ranked[key] = event.score
        self.cached[event.id] = event.cached
        if event.finish:
            self.finished[key] = event.finish
        stopped = event.tokens[-1] if event.finish is Finish.STOP and event.tokens else None
        require(event.stop_token == stopped, "wrong stop token")

    def _check_end(self) -> None:
        s = self.scheduler
        require(not s.running and not s.waiting and not s.by_id, "something was left behind")
        require(len(s.pool.free) == s.pool.blocks, "blocks were left behind")
        for request in self.work.requests:
            cached = self.cached.get(request.id, 0)
            require(0 <= cached < len(request.tokens), "more cached than can be")
            self._check_scores(request)
            for i in range(request.params.n):
                self._check_text(request, i)
        m = self.engine.metrics
        self.counts += Counter(
            {
                "preemption": m.preempted,
                "eviction": m.evicted,
                "rejected draft": m.proposed - m.accepted,
                "accepted draft": m.accepted,
                "copy-on-write": m.copied,
                "shared prefill": m.awaited,
                "restored block": self.external.blocks.written,
                "peer block": m.peer_hits // self.work.limits.block_size,
                "peer given up": m.peer_given_up,
                "steps": m.steps,
            }
        )

    def _check_scores(self, request: Request) -> None:
        found = self.scores.get(request.id, [])
        wanted = scores(request) if request.params.prompt_logprobs is not None else []
        ended = self.finished.get((request.id, 0))
        require(found == wanted[: len(found)], f"{request.id}: wrong scores of its prompt")
        require(len(found) == len(wanted) or ended is Finish.ABORT, f"{request.id}: scores missing")
        if wanted and ended is not Finish.ABORT:
            require(not self.cached[request.id], "a scored prompt was found in the cache")

    def _check_text(self, request: Request, index: int) -> None:
        finish = self.finished.get((request.id, index))
        require(finish, f"{request.id}/{index} never ended")
        if request.pooling is not None:
            self._check_vector(request, finish)
            return
        if request.beam is not None:
            self._check_search(request)
            return
        right, text = answer(request, index), tuple(self.texts.get((request.id, index), ()))
        if finish is Finish.ABORT:
            require(text == right[: len(text)], f"{request.id}/{index}: {text}, not {right}")
            return
        require(text == right, f"{request.id}/{index}: {text}, not {right}")
        due = Finish.LENGTH if len(right) == request.max_tokens else Finish.REPETITION
        stopped = right[-1] in request.stop_ids and len(right) > request.params.min_tokens
        due = Finish.STOP if stopped else due
        self.counts["thought"] += request.words.thought is not None
        self.counts["repetition"] += due is Finish.REPETITION
        require(finish is due, f"{request.id}/{index} ended by {finish}, not {due}")

    def _check_vector(self, request: Request, finish: Finish) -> None:
        found = self.vectors[request.id, 0]
        require((finish is Finish.ABORT) == (found is None), f"{request.id}: no vector")
        require(found is None or list(found) == vector(request), f"{request.id}: wrong vector")
        mean = request.pooling.pooling == "mean"
        require(not mean or not self.cached.get(request.id), "a mean that skipped tokens")
        self.counts["vector"] += found is not None

    def _check_search(self, request: Request) -> None:
        keys = [(request.id, i) for i in range(request.width)]
        ends = [self.finished.get(key) for key in keys]
        require(all(ends), f"{request.id}: {ends}")
        if Finish.ABORT in ends:
            require(set(ends) == {Finish.ABORT}, f"{request.id}: half an abort")
            return
        right = search(request)
        require(
            [tuple(self.texts[key]) for key in keys] == [h.tokens for h in right], "other beams"
        )
        require([self.ranked[key] for key in keys] == [h.score for h in right], "other scores")
        self.counts["search"] += 1

    # --- what happens to it ---

    def _abort(self, id: str, index: int | None) -> None:
        live = self.scheduler.by_id.get(id, [])
        chosen = [s for s in live if index in (None, s.index)]
        self.counts["mid-prefill abort"] += any(
            s.state is SequenceState.RUNNING and 0 < s.computed < s.prompt - 1 for s in chosen
        )
        events = self.engine.abort(id, index)
        width = live[0].request.width if live else 1
        due = width if width > 1 else len(chosen)
        require(len(events) == due, "an abort reached the wrong choices")
        for event in events:
            self._take(event)
        self._check_pool()

    def _drafter(self) -> Drafter | None:
        if self.work.guesses == "none":
            return None
        if self.work.guesses == "ngram":
            return NgramDrafter(3, 1)
        return OracleDrafter(self.work.requests, self.work.seed)

    def _clock(self) -> float:
        self.now += 1.0
        return self.now
