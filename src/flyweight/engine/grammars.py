"""Sequences whose text must match a grammar: compiled in a thread, one matcher for each sequence.

Invariant: a matcher has taken exactly the tokens its sequence has generated, or is made again from
them; so it needs no notice of preemption, forks and interrupts.  A compiled grammar grows with
the texts matched with it, up to limits after which it takes none; so each request has one of
its own.  Whatever goes wrong with one ends its own request, and what its masks cost is bounded for
the others (`MaskBudget`).  Knows no grammar and no vocabulary.

Where a step has no time for all masks, cheap ones are always computed and expensive ones in turn:
one of them always, the one that waited longest first.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from math import inf
from typing import Protocol

from flyweight.engine.hook import Hook, RowMarks
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Chunk, Produced
from flyweight.errors import EngineError, FlyweightError, RequestError
from flyweight.params.structured import NAME, StructuredOutputs
from flyweight.types import Event, Finish, Request
from flyweight.wire import U32, Sampled

Key = tuple[str, int]  # a choice of a request


class MaskBudget:
    """The cost of a choice is the processor time of its mask and of the tokens taken after it."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock = clock
        self._cost: dict[Key, float] = {}  # in the newest step that computed its mask
        self._last: dict[Key, int] = {}  # expensive ones, numbered in the order they were computed
        self._count = 0

    def select(self, keys: Seq[Key], seconds: float) -> Iterator[int]:
        """The places of the masks to compute within `seconds`.  Each one is computed, and its time
        recorded (`record_mask`), before the next place is taken.
        """
        fair = seconds / max(1, len(keys))
        cheap = [i for i, key in enumerate(keys) if self._cost.get(key, inf) <= fair]
        yield from cheap
        expensive = set(range(len(keys))).difference(cheap)
        spent = 0.0
        for i in sorted(expensive, key=lambda i: self._last.get(keys[i], 0)):
            expected = self._cost.get(keys[i], 0.0)
            if spent and spent + expected > seconds:
                return
            self._count += 1
            self._last[keys[i]] = self._count
            yield i
            spent += max(expected, self._cost.get(keys[i], 0.0))
            if spent >= seconds:
                return

    def record_mask(self, key: Key, seconds: float) -> None:
        self._cost[key] = seconds

    def record_tokens(self, key: Key, seconds: float) -> None:
        """Adds the time of the tokens taken after a mask."""
        self._cost[key] = self._cost.get(key, 0.0) + seconds

    def forget(self, key: Key) -> None:
        self._cost.pop(key, None)
        self._last.pop(key, None)


LIVE_BYTES = 64 << 20  # of compiled grammars, as they are at first
# Of one: a floor, and so many for each byte of its source (measured: under 100 KB for small ones
# and 30 tokens, 10 to 40 bytes each for choices, enums and alternatives of 50 KB).
LEAST_BYTES, BYTES_EACH = 256 << 10, 64
WAIT = 0.01  # seconds the loop waits for a grammar where it has nothing else to do
OUTGROWN = "the grammar grew beyond its limits as the text did"
STUCK = "the grammar and the other options of the request leave no token to sample"
FAILED = "the grammar engine failed: {}"


class MatcherProtocol(Protocol):
    """See `sampling.grammar`."""

    broken: str

    def copy(self) -> "MatcherProtocol": ...
    @property
    def over(self) -> bool: ...
    def take(self, tokens: Seq[int]) -> int: ...
    def back(self, count: int) -> None: ...
    def fits(self, tokens: Seq[int]) -> int: ...
    def mask(self, *, endless: bool = False) -> U32: ...


class CompilerProtocol(Protocol):
    """See `sampling.grammar`."""

    def compile(self, outputs: StructuredOutputs) -> MatcherProtocol: ...


@dataclass(slots=True)
class _Held:
    matcher: MatcherProtocol
    taken: int = 0  # tokens after the prompt


class Grammars(Hook):
    """`make` builds the compiler, which takes a while for a large vocabulary and is done by
    `prepare`, or when the first grammar comes; None: there are no grammars here.  Those of
    unfinished requests take about `most` bytes at first, or there is one.
    """

    def __init__(
        self, make: Callable[[], CompilerProtocol] | None = None, most: int = LIVE_BYTES
    ) -> None:
        self._make, self._most = make, most
        self._compiler: CompilerProtocol | None = None
        self._thread: ThreadPoolExecutor | None = None
        # Those without a future wait for room.
        self._begun: dict[str, tuple[Request, Future[MatcherProtocol] | None]] = {}
        self._sizes: dict[str, int] = {}  # of what is compiled, or being compiled
        self._live: dict[str, MatcherProtocol] = {}  # at the beginning, for each request under way
        self._held: dict[Key, _Held] = {}
        self.budget = MaskBudget()

    # --- before a request is scheduled ---

    @property
    def prepared(self) -> bool:
        """Whether the compiler is there, or being built, or not wanted."""
        return self._make is None or self._thread is not None

    def prepare(self) -> None:
        """Has the compiler built, so that the first grammar need not wait for it."""
        if not self.prepared:
            self._start_worker().submit(self._build)

    @property
    def busy(self) -> bool:
        return bool(self._begun)

    def is_compiling(self, id: str) -> bool:
        """Whether a request still waits for its grammar."""
        return id in self._begun

    def begin(self, request: Request) -> None:
        """Compiles a request's grammar; `ready` says when it is done.  Raises `RequestError`."""
        if self._make is None:
            raise RequestError(": this engine has no vocabulary to compile it with", NAME)
        if request.id in self._begun:
            raise RequestError("is in use by an unfinished request", "id", value=request.id)
        self._begun[request.id] = request, None
        self._admit()

    def take_ready(self) -> list[tuple[Request, FlyweightError | None]]:
        """Requests whose grammar is compiled, or why it cannot be."""
        found = []
        for id, (request, future) in list(self._begun.items()):
            if future is None or not future.done():
                continue
            del self._begun[id]
            error = future.exception()
            if error is None:
                self._live[id] = future.result()
            else:
                del self._sizes[id]
            if error is not None and not isinstance(error, FlyweightError):
                error = EngineError(FAILED.format(type(error).__name__))
            found.append((request, error))
        self._admit()
        return found

    def wait(self) -> None:
        """Where there is nothing else to do: for a grammar, a little while."""
        futures = [future for _, future in self._begun.values() if future is not None]
        wait_for(futures, WAIT, "FIRST_COMPLETED")

    @property
    def live_bytes(self) -> int:
        """About what the grammars of unfinished requests take."""
        return sum(self._sizes.values())

    def cancel(self, id: str, index: int | None) -> list[Event]:
        """Forgets a request that is not scheduled yet; a single choice of it stays."""
        found = self._begun.get(id)
        if found is None or index is not None:
            return []
        del self._begun[id]
        self._sizes.pop(id, None)
        if found[1] is not None:
            found[1].cancel()
        return [Event(id, i, (), finish=Finish.ABORT) for i in range(found[0].params.n)]

    def refuse(self, request: Request, error: FlyweightError) -> list[Event]:
        """Forgets a request that is not scheduled; the ends of its choices."""
        self.forget(request.id, 0, ended=True)
        return [
            Event(request.id, i, (), finish=Finish.ERROR, error=error, refused=True)
            for i in range(request.params.n)
        ]

    def _admit(self) -> None:
        """Has those compiled that wait, in their order, as far as there is room for them."""
        taken = self.live_bytes
        for id, (request, future) in self._begun.items():
            if future is not None:
                continue
            outputs = request.params.structured_outputs
            assert outputs is not None
            size = LEAST_BYTES + BYTES_EACH * outputs.size
            if taken and taken + size > self._most:
                return
            taken += size
            self._sizes[id] = size
            self._begun[id] = request, self._start_worker().submit(self._compile, outputs)

    def _compile(self, outputs: StructuredOutputs) -> MatcherProtocol:
        """In a thread of its own, which lets the loop go on."""
        return self._build().compile(outputs)

    def _start_worker(self) -> ThreadPoolExecutor:
        """One thread: what is begun first is done first."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammar")
        return self._thread

    def _build(self) -> CompilerProtocol:
        if self._compiler is None:
            assert self._make is not None
            self._compiler = self._make()
        return self._compiler

    # --- with each step ---

    def wants(self, request: Request) -> bool:
        return request.params.structured_outputs is not None

    def mark(self, chunks: Seq[Chunk], marks: RowMarks) -> None:
        """Masks of what may be drawn, as far as the step's time allows; the other rows are to be
        computed again.
        """
        drawn = [chunk for chunk in chunks if chunk.drawn]
        marks.again.update(chunk.drawn.start for chunk in drawn)
        clock = self.budget.clock
        for i in self.budget.select([_make_key(chunk.seq) for chunk in drawn], marks.seconds):
            chunk, first = drawn[i], drawn[i].drawn.start
            marks.again.discard(first)
            began = clock()
            try:
                self._mark(chunk, marks)
            except Exception as error:  # ends its own sequence only
                marks.errors[first] = EngineError(FAILED.format(type(error).__name__))
            self.budget.record_mask(_make_key(chunk.seq), clock() - began)

    def settle(self, chunk: Chunk, out: Produced, sampled: Sampled) -> Produced:
        if not out.tokens:
            return out
        seq = chunk.seq
        error, over = self.take(seq, out.tokens)
        if error:
            return Produced((), scores=out.scores, error=error)
        if over:  # a draft may have been over earlier
            taken = self._held[_make_key(seq)].taken - seq.generated
            out = out._replace(tokens=out.tokens[:taken], logprobs=out.logprobs[:taken])
        return out._replace(over=over)

    def take(self, seq: Sequence, tokens: Seq[int]) -> tuple[FlyweightError | None, bool]:
        """Takes what was drawn, up to where the text is over.  An error, where the grammar refuses
        it; and whether it is over, so that no end of sequence need be drawn.
        """
        began = self.budget.clock()
        try:
            held = self._find_held(seq)
            matcher, taken = held.matcher, held.matcher.take(tokens)
            held.taken += taken
            ended = taken > 0 and tokens[taken - 1] in seq.request.stop_ids
            over = matcher.over and not (matcher.broken or ended)
        except Exception as error:  # ends its own sequence only
            return EngineError(FAILED.format(type(error).__name__)), False
        self.budget.record_tokens(_make_key(seq), self.budget.clock() - began)
        if taken < len(tokens) and not (over or ended):  # a draft may have gone on
            if matcher.broken:
                return _make_size_error(matcher), False
            return RequestError(f": {STUCK}", NAME, code="no_token_left"), False
        return None, over

    def cut(self, seq: Sequence, draft: list[int]) -> list[int]:
        """A draft as far as the grammar allows it, and no end of sequence in it."""
        ends = seq.request.stop_ids
        known = next((i for i, token in enumerate(draft) if token in ends), len(draft))
        began = self.budget.clock()
        fits = self._find_held(seq).matcher.fits(draft[:known]) if known else 0
        self.budget.record_tokens(_make_key(seq), self.budget.clock() - began)
        return draft[:fits]

    def forget(self, id: str, index: int, *, ended: bool = False) -> None:
        self._held.pop((id, index), None)
        self.budget.forget((id, index))
        if ended:
            self._live.pop(id, None)
            self._sizes.pop(id, None)

    def _mark(self, chunk: Chunk, marks: RowMarks) -> None:
        """Masks of the next token, and of the one after each draft token."""
        seq, first = chunk.seq, chunk.drawn.start
        matcher, taken = self._find_held(seq).matcher, list[int]()
        endless = seq.request.params.ignore_eos
        for i, row in enumerate(chunk.drawn):
            if i:
                depth = seq.find_depth(i - 1)
                matcher.back(sum(taken[depth:]))  # from one branch of a tree to the next
                taken[depth:] = [matcher.take(seq.draft[i - 1 : i])]
            marks.masks[row] = matcher.mask(endless=endless)
        matcher.back(sum(taken))
        if matcher.broken:
            marks.errors[first] = _make_size_error(matcher)

    def _find_held(self, seq: Sequence) -> _Held:
        """A sequence's matcher, with all that was generated taken."""
        key = _make_key(seq)
        held = self._held.get(key)
        if held is None or held.taken > seq.generated:
            held = self._held[key] = _Held(self._live[seq.request.id].copy())
        if held.taken < seq.generated:
            held.taken += held.matcher.take(seq.tokens[seq.prompt + held.taken :].tolist())
        return held


def _make_key(seq: Sequence) -> Key:
    return seq.request.id, seq.index


def _make_size_error(matcher: MatcherProtocol) -> RequestError:
    """Why it can go on no more."""
    return RequestError(f": {OUTGROWN}: {matcher.broken}", NAME, code="grammar_limit")
