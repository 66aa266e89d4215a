"""From the engine's events to what a caller reads: text, stop strings, log-probabilities, timings of one request.

Invariant: the text never holds half a character or part of a stop string, and does not depend on how tokens were
grouped into events.  Knows nothing of scheduling; who ends a choice early is told by `feed`'s return value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flyweight.results import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from flyweight.text.detokenizer import Detokenizer
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import Event, Finish, Request, Timings, TokenLogprobs


@dataclass(slots=True)
class _Choice:
    """One choice as it grows."""

    detokenizer: Detokenizer
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative: float = 0.0
    finish: str | None = None
    reason: int | str | None = None
    delta: str = ""


class Collector:
    """Gathers one request's events.  `prompt` is the text it came from, if it came as text."""

    def __init__(self, request: Request, tokenizer: Tokenizer, prompt: str | None) -> None:
        params = request.params
        self.request, self.tokenizer, self.prompt = request, tokenizer, prompt
        self.cached = 0
        self.timings: Timings | None = None
        self.choices = [
            _Choice(
                Detokenizer(
                    tokenizer,
                    request.tokens,
                    stop=params.stop,
                    skip_special=params.skip_special_tokens,
                    include_stop=params.include_stop_str_in_output,
                )
            )
            for _ in range(params.n)
        ]

    @property
    def finished(self) -> bool:
        return all(choice.finish for choice in self.choices)

    def feed(self, event: Event) -> bool:
        """Takes one event; True when a stop string ended its choice, so that the engine can be told to stop it."""
        choice = self.choices[event.index]
        self.timings = event.timings or self.timings
        self.cached = max(self.cached, event.cached)
        choice.delta = ""
        if choice.finish:
            return False
        for i, token in enumerate(event.tokens):
            hidden = event.stop_token is not None and i == len(event.tokens) - 1
            self._take(choice, token, event.logprobs[i] if event.logprobs else None, hidden)
            if choice.detokenizer.stopped is not None:
                choice.finish, choice.reason = Finish.STOP.value, choice.detokenizer.stopped
                return event.finish is None
        if event.finish:
            choice.delta += choice.detokenizer.finish()
            choice.finish, choice.reason = event.finish.value, event.stop_token
            if choice.detokenizer.stopped is not None:
                choice.finish, choice.reason = Finish.STOP.value, choice.detokenizer.stopped
        return False

    def _take(self, choice: _Choice, token: int, scored: TokenLogprobs | None, hidden: bool) -> None:
        """`hidden`: a stop token is returned among the ids but is no part of the text."""
        choice.tokens.append(token)
        if scored is not None:
            choice.cumulative += scored.chosen
            choice.logprobs.append(self._logprobs(token, scored))
        if not hidden:
            choice.delta += choice.detokenizer.push([token])

    def _logprobs(self, token: int, scored: TokenLogprobs) -> dict[int, Logprob]:
        found = {token: Logprob(scored.chosen, scored.rank, self.tokenizer.piece(token))}
        for rank, (i, p) in enumerate(zip(scored.top_ids, scored.top, strict=True), 1):
            found.setdefault(i, Logprob(p, rank, self.tokenizer.piece(i)))
        return found

    def output(self) -> RequestOutput:
        """Everything so far, as a frozen result."""
        wanted = self.request.params.logprobs is not None
        return RequestOutput(
            request_id=self.request.id,
            prompt=self.prompt,
            prompt_token_ids=self.request.tokens,
            outputs=tuple(_result(i, c, wanted) for i, c in enumerate(self.choices)),
            finished=self.finished,
            num_cached_tokens=self.cached,
            metrics=_metrics(self.timings, [len(c.tokens) for c in self.choices]),
        )


def _result(index: int, choice: _Choice, wanted: bool) -> CompletionOutput:
    return CompletionOutput(
        index=index,
        text=choice.detokenizer.text,
        token_ids=tuple(choice.tokens),
        cumulative_logprob=choice.cumulative if wanted else None,
        logprobs=tuple(choice.logprobs) if wanted else None,
        finish_reason=choice.finish,
        stop_reason=choice.reason,
        delta=choice.delta,
    )


def _metrics(timings: Timings | None, counts: Sequence[int]) -> RequestMetrics:
    if timings is None:
        return RequestMetrics()
    later = sum(max(0, n - 1) for n in counts)
    decoding = timings.last - timings.first
    return RequestMetrics(
        queued=timings.scheduled - timings.arrival,
        ttft=timings.first - timings.arrival,
        total=timings.last - timings.arrival,
        decode_rate=later / decoding if decoding > 0 else 0.0,
    )
