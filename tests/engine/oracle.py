"""A model whose text is a hash of what it can see through the tables, and the same text without any
engine.

Each slot holds a digest of its token, its position and the slot before it, and a row's next token
is a digest of every slot in its context: a wrong table, slot, context, copy or stale block changes
what comes out. Ints hash alike in every process, so runs can be repeated.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from flyweight.engine.runner import Ticket
from flyweight.params.repetition import RepetitionDetectionParams
from flyweight.sampling.beam import BeamState, Hypothesis, advance, make_rules
from flyweight.types import Request
from flyweight.wire import I32, Batch, Sampled

VOCAB, HIDDEN = 6, 3


def content(token: int, position: int, before: int) -> int:
    """What a slot holds."""
    return hash((token, position, before))


def state(seen: Sequence[int]) -> list[float]:
    """The hidden state of a token that sees a context: small whole numbers, so sums are exact."""
    mixed = hash(tuple(seen))
    return [float(mixed >> 7 * i & 127) for i in range(HIDDEN)]


def draw(
    seen: tuple[int, ...], seed: int, choice: int, position: int, banned: frozenset[int]
) -> int:
    """The token that follows a context."""
    noise = hash((hash(seen), seed, choice, position))
    return [t for t in range(VOCAB) if t not in banned][noise % (VOCAB - len(banned))]


def score(seen: tuple[int, ...], token: int) -> float:
    """Stands for the log-probability of a token after a context."""
    return float(hash((hash(seen), token)) % 2**20)


class MockRunner:
    """Stands where a `Runner` does."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.kv = [-1] * (blocks * block_size)

    def submit(
        self,
        batch: Batch,
        moves: tuple[I32, I32] | None = None,
        edits: object = (),
        reads: object = (),
    ) -> Ticket:
        self._move(moves)
        seen: list[list[int]] = [[]] * len(batch.tokens)
        views = [self._write(batch, s) for s in range(len(batch.contexts))]
        for s, view in enumerate(views):  # all writes come before any read, as in a layer
            first, last = int(batch.starts[s]), int(batch.starts[s + 1])
            for t in range(first, last):
                seen[t] = view[: int(batch.contexts[s]) - (last - 1 - t)]
        tokens = [self._row(batch, r, seen[t]) for r, t in enumerate(batch.rows.tolist())]
        scores = [
            score(tuple([self.kv[slot] for slot in seen[t]]), token)
            for t, token in zip(batch.rows.tolist(), tokens, strict=True)
        ]
        ids, reals = np.array(tokens, np.int32), np.array(scores, np.float32)
        best = [self._best(batch, r, seen[t]) for r, t in enumerate(batch.rows.tolist())]
        top_ids = np.array([row[0] for row in best], np.int32).reshape(-1, VOCAB)
        top = np.array([row[1] for row in best], np.float32).reshape(-1, VOCAB)
        hidden = None
        if batch.hidden is not None:
            rows = [[self.kv[slot] for slot in seen[t]] for t in batch.hidden.tolist()]
            hidden = np.array([state(row) for row in rows], np.float32).reshape(-1, HIDDEN)
        return Ticket(Sampled(ids, reals, ids, top_ids, top, hidden=hidden))

    def wait(self, ticket: Ticket) -> Sampled:
        return ticket.sampled

    def _move(self, moves: tuple[I32, I32] | None) -> None:
        if moves is not None:
            src, dst = (slots.tolist() for slots in moves)
            for slot, value in zip(dst, [self.kv[s] for s in src], strict=True):
                self.kv[slot] = value

    def _write(self, batch: Batch, s: int) -> list[int]:
        """Writes one sequence's slots; returns the slots it sees."""
        B = self.block_size
        view = [block * B + i for block in batch.tables[s].tolist() for i in range(B)]
        self._move(batch.ancestors)  # those before: parents come before their children
        own = slice(int(batch.starts[s]), int(batch.starts[s + 1]))
        columns = (batch.tokens[own], batch.positions[own], batch.slots[own])
        for token, position, slot in zip(*(c.tolist() for c in columns), strict=True):
            before = self.kv[view[position - 1]] if position else 0
            self.kv[slot] = content(token, position, before)
        return view

    def _best(self, batch: Batch, r: int, seen: list[int]) -> tuple[list[int], list[float]]:
        """Candidates of a row as far as they are requested, padded."""
        ids, values = odds(tuple([self.kv[slot] for slot in seen]))
        count = max(0, int(batch.sampling.logprobs[r]))
        rest = VOCAB - min(count, VOCAB)
        return ids[:count] + [-1] * rest, values[:count] + [float("nan")] * rest

    def _row(self, batch: Batch, r: int, seen: list[int]) -> int:
        s = batch.sampling
        if s.given[r] >= 0:
            return int(s.given[r])
        banned = frozenset(s.banned_ids[s.banned_starts[r] : s.banned_starts[r + 1]].tolist())
        kv = tuple([self.kv[slot] for slot in seen])
        allowed = s.allowed_ids[s.allowed_starts[r] : s.allowed_starts[r + 1]].tolist()
        if allowed:
            assert len(allowed) == 1 and not banned, "a token that is due, and nothing else"
            return int(allowed[0])
        return draw(kv, int(s.seed[r]), int(s.choice[r]), int(s.position[r]), banned)


def vector(request: Request) -> list[float]:
    """What a request that pools gets."""
    assert request.pooling is not None and not request.pooling.normalize
    seen: list[int] = []
    for position, token in enumerate(request.tokens):
        seen.append(content(token, position, seen[-1] if seen else 0))
    states = np.array([state(seen[: i + 1]) for i in range(len(seen))])
    pooled = states.mean(0) if request.pooling.pooling == "mean" else states[-1]
    return list(pooled.astype(np.float32))


def odds(seen: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """All ids and their log-probabilities after a context, best first; ties are rare."""
    noise = [hash((seen, t, 7)) % 4096 / 256 for t in range(VOCAB)]
    ids = sorted(range(VOCAB), key=lambda t: noise[t])
    return ids, [-noise[t] for t in ids]


def search(request: Request) -> tuple[Hypothesis, ...]:
    """What a beam search gets: one state after the other, each beam's context from the start."""
    own, state = make_rules(request), BeamState()
    while not state.done:
        rows = []
        for beam in state.beams:
            seen: list[int] = []
            for position, token in enumerate(request.tokens + beam.tokens):
                seen.append(content(token, position, seen[-1] if seen else 0))
            rows.append(odds(tuple(seen)))
        state = advance(state, rows, own)
    return state.ended


@cache
def _answer(
    prompt: tuple[int, ...], seed: int, choice: int, room: int, least: int, stop: frozenset[int],
    circles: RepetitionDetectionParams | None, budget: tuple[int, int | None] | None,
) -> tuple[int, ...]:  # fmt: skip
    seen: list[int] = []
    for position, token in enumerate(prompt):
        seen.append(content(token, position, seen[-1] if seen else 0))
    out: list[int] = []
    while len(out) < room:
        banned = stop if len(out) < least else frozenset()
        token = due(out, *budget) if budget else None
        if token is None:
            token = draw(tuple(seen), seed, choice, len(seen), banned)
        out.append(token)
        turns = circles and len(out) >= least and goes_round(out, circles)
        if turns or (token in stop and len(out) > least):
            break
        seen.append(content(token, len(seen), seen[-1]))
    return tuple(out)


def goes_round(text: Sequence[int], circles: RepetitionDetectionParams) -> bool:
    """Whether a text ends with a pattern so often: tried as it is defined."""
    text, count = list(text), circles.min_count
    sizes = range(max(1, circles.min_pattern_size), circles.max_pattern_size + 1)
    return any(text[-size * count :] == text[-size:] * count for size in sizes)


def due(text: Sequence[int], budget: int, spent: int | None) -> int | None:
    """What closes a thought that has its budget, reported token by token: 0 opens one at the
    beginning of an answer, 1 and 2 in a row end it.
    """
    within, used, closing = spent is not None, spent or 0, 0
    for i, token in enumerate(text):
        if not within:
            within = i == 0 and token == 0
            if not within:
                return None
        elif closing or used >= budget:
            closing += 1
            if closing == 2:
                return None
        else:
            used += 1
            if token == 2 and i and text[i - 1] == 1 and used - (spent or 0) > 1:
                return None
    return 1 + closing if within and used >= budget else None


def answer(request: Request, choice: int) -> tuple[int, ...]:
    """The oracle: one sequence, one token after the other."""
    params, thought = request.params, request.words.thought
    budget = thought and (thought.budget, thought.spent if thought.opened else None)
    return _answer(
        request.tokens, request.seed, choice, request.max_tokens, params.min_tokens,
        request.stop_ids, params.repetition_detection, budget,
    )  # fmt: skip


def scores(request: Request) -> list[float]:
    """What the oracle thinks of a prompt, from its second token on."""
    seen: list[int] = []
    found = []
    for position, token in enumerate(request.tokens):
        if position:
            found.append(score(tuple(seen), token))
        seen.append(content(token, position, seen[-1] if seen else 0))
    return found
