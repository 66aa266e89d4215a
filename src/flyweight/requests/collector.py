"""From the engine's events to what a caller reads: text, stop strings, log-probabilities, timings
of one request.

Invariant: the text never holds an incomplete character or part of a stop string, nor depends on
how tokens were grouped into events, nor on when it is read: it is made then, unless a stop
string may end it.  Knows nothing of scheduling; `feed` returns whether a choice ends early.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from flyweight.errors import FlyweightError
from flyweight.outputs import (
    AttemptReport,
    BeamSearchOutput,
    CacheExplanation,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    PromptLogprobs,
    RequestMetrics,
    RequestOutput,
)
from flyweight.params.repetition import FOUND
from flyweight.requests.explaining import explain_cache
from flyweight.requests.scores import ScoreColumns
from flyweight.text.detokenizer import Detokenizer
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import Event, Finish, Request, Reuse, SamplingParams, StepUse, TokenLogprobs


def make_drawn_params(requested: SamplingParams) -> SamplingParams:
    """What the engine is to draw for `requested`: `best_of` choices, and what ranks them."""
    if requested.best_of in (None, requested.n):
        return requested
    return replace(requested, n=requested.best_of, best_of=None, logprobs=requested.logprobs or 0)


class TextPiece(NamedTuple):
    """What is new of choice number `choice` since the last piece of it; `text` may be empty while a
    character or a stop string is incomplete.
    """

    choice: int
    text: str
    tokens: list[int]
    logprobs: Sequence[dict[int, Logprob]] | None
    finish: str | None
    reason: int | str | None
    error: FlyweightError | None = None
    report: AttemptReport | None = None


@dataclass(slots=True)
class _Choice:
    """One choice as it grows; `delta` is the text no output has shown yet, `unread` the tokens
    whose text is still to be made.
    """

    detokenizer: Detokenizer
    scores: ScoreColumns
    delta: str
    tokens: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    cumulative: float = 0.0
    score: float | None = None
    finish: str | None = None
    reason: int | str | None = None
    error: FlyweightError | None = None
    shown: int = 0  # tokens that were in a piece
    first: float = 0.0  # when its first token came, and its newest
    last: float = 0.0
    ended: bool = False  # its last piece was made
    discarded: int = 0  # tokens of attempts before this one
    report: AttemptReport | None = None
    closing: bool = False  # no more tokens come, and what the text held back is still to be shown

    @property
    def spent(self) -> int:
        """Tokens of all attempts."""
        return self.discarded + len(self.tokens)

    def read(self) -> Detokenizer:
        """Makes the text of all tokens taken."""
        if self.unread:
            self.delta += self.detokenizer.push(self.unread)
            self.unread.clear()
        if self.closing:
            self.closing = False
            self.delta += self.detokenizer.finish()
        return self.detokenizer


class Collector:
    """Gathers one request's events.  `prompt` is the text it came from, if it came as text;
    `requested` are the caller's options, where the request's own draw more choices to take the best
    of.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        prompt: str | None,
        clock: Callable[[], float] = time.monotonic,
        requested: SamplingParams | None = None,
    ) -> None:
        self.request, self.tokenizer, self.prompt = request, tokenizer, prompt
        self.requested = requested or request.params
        self.clock = clock
        self.cached = 0
        self.interval = 1  # tokens of a piece, from the second on
        self.notes: dict[str, Any] = {}  # what is reported with its times
        self.reuse: Reuse | None = None
        self.use: StepUse | None = None
        self._draft_speedup: float | None = None
        self._scheduled = self._first = self._last = 0.0
        params = request.params
        self.echo = self._read_prompt_text() if params.echo else ""
        self._prompt = ScoreColumns(params.prompt_logprobs or 0)
        self.choices = [
            _Choice(self.make_detokenizer(), self._make_scores(), self.echo)
            for _ in range(max(params.n, request.width))
        ]

    @property
    def finished(self) -> bool:
        return all(choice.finish for choice in self.choices)

    @property
    def produced(self) -> int:
        """Tokens so far, over all choices and attempts."""
        return sum(choice.spent for choice in self.choices)

    @property
    def readable(self) -> bool:
        """Whether what has come so far may be shown."""
        return True

    def take_next(self) -> Request | None:
        """The request to run next, under the same id, where the answer is generated again."""
        return None

    def replace_choices(self, indexes: Sequence[int], other: "Collector") -> None:
        """Puts the choices of another attempt in the places of some of these."""
        for index, fresh in zip(indexes, other.choices, strict=True):
            fresh.discarded = self.choices[index].spent
            self.choices[index] = fresh
        self._last = other._last
        if self.use is not None and other.use is not None:
            self.use += other.use

    def feed(self, event: Event) -> bool:
        """Takes one event; True when a stop string ended its choice, so that the engine can
        stop it.
        """
        choice = self.choices[event.index]
        self.cached = max(self.cached, event.cached)
        self.reuse, self.use = self.reuse or event.reuse, event.use or self.use
        if choice.finish:
            return False
        self._time(choice, event)
        for known in event.prompt_logprobs:
            self._prompt.add(self.request.tokens[1 + len(self._prompt.ranks)], known)
        if self.request.params.max_tokens == 0 and event.error is None:  # drawn, not wanted
            choice.finish = Finish.LENGTH.value if event.finish else None
            return False
        for i, token in enumerate(event.tokens):
            scored = event.logprobs[i] if event.logprobs else None
            last = i == len(event.tokens) - 1
            self._take(choice, token, scored, hidden=last and self._is_hidden(event))
            if self.request.params.stop and choice.read().stopped is not None:
                choice.finish, choice.reason = Finish.STOP.value, choice.detokenizer.stopped
                return event.finish is None
        if event.total is not None:
            choice.cumulative, choice.score = event.total, event.score
        if event.finish:
            self._end(choice, event, event.finish)
        return False

    def output(self) -> RequestOutput:
        """The result so far; its deltas hold what was new since the output before."""
        known: dict[str, Any] = dict(
            request_id=self.request.id,
            prompt=self.prompt,
            prompt_token_ids=list(self.request.tokens),
            outputs=tuple(
                self._make_completion(i, choice) for i, choice in enumerate(self._rank_choices())
            ),
            finished=self.finished,
            num_cached_tokens=self.cached,
            metrics=self.metrics(),
            prompt_logprobs=self.read_prompt_logprobs(),
            cache_explanation=self._explain_cache(),
        )
        if self.request.beam is not None:
            return BeamSearchOutput(**known, prompt_text=self._read_prompt_text())
        return RequestOutput(**known)

    def _explain_cache(self) -> CacheExplanation | None:
        if self.reuse is None:
            return None
        return explain_cache(self.reuse, self.request.tokens, self.tokenizer)

    def take_pieces(self) -> list[TextPiece]:
        """What is new in every choice that has news, at a cost that does not grow with the text."""
        found = []
        for index, choice in enumerate(self.choices):
            fresh = len(choice.tokens) - choice.shown
            enough = self.interval if choice.shown else 1
            if choice.ended or (fresh < enough and not choice.finish):
                continue
            choice.read()
            text, choice.delta = choice.delta, ""
            first, choice.shown = choice.shown, len(choice.tokens)
            scores = None
            if self.requested.scored is not None:
                scores = choice.scores.to_logprobs(self._decode_token).slice_from(first)
            choice.ended = choice.finish is not None
            new = choice.tokens[first:]
            end = choice.finish, choice.reason, choice.error, choice.report
            found.append(TextPiece(index, text, new, scores, *end))
        return found

    def _rank_choices(self) -> list[_Choice]:
        """The choices to show: the likeliest first where more were drawn."""
        if self.requested.n == len(self.choices):
            return self.choices
        ranked = sorted(self.choices, key=lambda c: (c.finish == "error", -c.cumulative))
        return ranked[: self.requested.n]

    def _read_prompt_text(self) -> str:
        """The prompt as it was given, or as its tokens read."""
        if self.prompt is not None:
            return self.prompt
        return self.tokenizer.decode(self.request.tokens, self.request.params.skip_special_tokens)

    def read_prompt_logprobs(self) -> PromptLogprobs | None:
        """Log-probabilities of the prompt, where they were requested; all there with the first
        token.
        """
        if self.request.params.prompt_logprobs is None:
            return None
        return PromptLogprobs(self._prompt.to_logprobs(self._decode_token))

    def _make_scores(self) -> ScoreColumns:
        params = self.request.params
        return ScoreColumns(params.scored or 0, ranked=not params.logprob_token_ids)

    def make_detokenizer(self) -> Detokenizer:
        """Makes the text of one choice from its beginning."""
        params = self.request.params
        return Detokenizer(
            self.tokenizer,
            self.request.tokens,
            stop=params.stop,
            skip_special=params.skip_special_tokens,
            include_stop=params.include_stop_str_in_output,
            least=params.min_tokens,
        )

    def _is_hidden(self, event: Event) -> bool:
        """A stop token is returned among the ids but is no part of the text, unless requested."""
        return event.stop_token is not None and not self.request.params.include_stop_str_in_output

    def _take(
        self, choice: _Choice, token: int, scored: TokenLogprobs | None, *, hidden: bool
    ) -> None:
        choice.tokens.append(token)
        if scored is not None:
            choice.cumulative += scored.chosen
            choice.scores.add(token, scored)
        if not hidden:
            choice.unread.append(token)

    def _end(self, choice: _Choice, event: Event, finish: Finish) -> None:
        choice.closing = True
        choice.finish = finish.value
        if self.request.params.stop and choice.read().stopped is not None:
            choice.finish, choice.reason = Finish.STOP.value, choice.detokenizer.stopped
        elif event.error is not None:
            choice.error, choice.reason = event.error, str(event.error)
        elif finish is Finish.REPETITION:
            choice.reason = FOUND
        elif event.stop_token in self.request.params.stop_token_ids:
            choice.reason = event.stop_token

    def _time(self, choice: _Choice, event: Event) -> None:
        """The first token of any choice, the newest of all."""
        self._last = choice.last = self.clock()
        if event.timings is None:
            return
        choice.first = choice.first or event.timings.first
        self._draft_speedup = event.timings.draft_speedup
        if not self._first:
            self._scheduled, self._first = event.timings.scheduled, event.timings.first

    def metrics(self) -> RequestMetrics:
        """Timings so far; zeros before the first token."""
        if not self._first:
            return RequestMetrics()
        arrival, decoding = self.request.arrival, self._last - self._first
        later = sum(max(0, choice.spent - 1) for choice in self.choices)
        return RequestMetrics(
            queued=self._scheduled - arrival,
            ttft=self._first - arrival,
            total=self._last - arrival,
            decode_rate=later / decoding if decoding > 0 else 0.0,
            draft_speedup=self._draft_speedup,
        )

    def sum_gaps(self) -> tuple[float, int]:
        """Seconds between the tokens of every choice, in all, and between how many."""
        long = [choice for choice in self.choices if len(choice.tokens) > 1]
        seconds = sum(choice.last - choice.first for choice in long)
        return seconds, sum(len(choice.tokens) - 1 for choice in long)

    def _decode_token(self, token: int) -> str:
        return self.tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")

    def _make_completion(self, index: int, choice: _Choice) -> CompletionOutput:
        shown = self.requested.scored is not None
        scores = choice.scores.to_logprobs(self._decode_token) if shown else None
        summed = self.request.params.scored is not None or choice.score is not None
        text = choice.read().text
        delta, choice.delta = choice.delta, ""
        return CompletionOutput(
            index=index,
            text=self.echo + text,
            token_ids=list(choice.tokens),
            cumulative_logprob=choice.cumulative if summed else None,
            logprobs=scores,
            score=choice.score,
            finish_reason=choice.finish,
            stop_reason=choice.reason,
            delta=delta,
            structured_output=choice.report,
        )


class VectorCollector:
    """Gathers the one event of a request that wants a vector of the prompt `tokens`, and when
    it came.
    """

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        tokens: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request, self.prompt, self.tokens = request, prompt, tokens
        self.clock, self.done = clock, 0.0
        self.event: Event | None = None

    @property
    def cached(self) -> int:
        return self.event.cached if self.event is not None else 0

    @property
    def reuse(self) -> Reuse | None:
        return self.event.reuse if self.event is not None else None

    @property
    def use(self) -> StepUse | None:
        return self.event.use if self.event is not None else None

    @property
    def finished(self) -> bool:
        return self.event is not None

    @property
    def readable(self) -> bool:
        return True

    def take_next(self) -> Request | None:
        return None

    def feed(self, event: Event) -> bool:
        self.event, self.done = event, self.clock()
        return False

    def output(self) -> EmbeddingRequestOutput:
        """Once it is there."""
        assert self.event is not None and self.event.vector is not None, "no vector yet"
        return EmbeddingRequestOutput(
            request_id=self.request.id,
            prompt=self.prompt,
            prompt_token_ids=list(self.tokens),
            outputs=EmbeddingOutput(self.event.vector.tolist()),
            num_cached_tokens=self.event.cached,
        )
