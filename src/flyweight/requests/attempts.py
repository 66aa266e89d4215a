"""The attempts at an answer whose finished text is checked against its schema
(`strictness: "validate"`): which texts to check, and what to generate again.

Invariant: all attempts at a choice have at most `max_tokens` tokens together, and at most
`MOST_ATTEMPTS` are made; a choice that was not ended by the model or a stop string is not repeated.
The last attempt is the answer, and says how many there were and whether it is valid.  Runs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from flyweight.errors import RequestError
from flyweight.outputs import AttemptReport
from flyweight.params.structured import NAME, VALIDATE, StructuredOutputs
from flyweight.requests.collector import Collector
from flyweight.requests.prompts import PreparedPrompt
from flyweight.sampling.schema_validation import make_validator
from flyweight.types import Event, Finish, Request, SamplingParams

MOST_ATTEMPTS = 32
LEAST_TEMPERATURE = 0.5  # from the second attempt on: at 0 it would be the first one again
SEED_STEP = 0x9E3779B97F4A7C15  # between the seeds of attempts; 2^64 / the golden ratio
CollectorFactory = Callable[[PreparedPrompt, str], Collector]
Verdicts = Mapping[int, bool | None]  # by choice; None: it could not be found out


def is_validated(params: SamplingParams) -> bool:
    """Whether the finished text is checked."""
    return params.structured_outputs is not None and params.structured_outputs.validated


def check_validated(params: SamplingParams) -> None:
    """Raises `RequestError` for options under which no text can be checked."""
    if not is_validated(params):
        return
    unsupported = {
        "best_of": params.best_of not in (None, params.n),
        "include_stop_str_in_output": params.include_stop_str_in_output,
    }
    for name, given in unsupported.items():
        if given:
            raise RequestError(f"cannot be combined with {NAME}.strictness = {VALIDATE!r}", name)


class Attempts:
    """Of one prompt, whose first attempt is `collector`; `make` makes the collector of a prompt."""

    def __init__(
        self,
        prompt: PreparedPrompt,
        collector: Collector,
        make: CollectorFactory,
    ) -> None:
        self.prompt, self.collector, self._make = prompt, collector, make
        self._count = 1
        self._open = list(range(len(collector.choices)))  # choices that are not settled

    @property
    def outputs(self) -> StructuredOutputs:
        """What a text is checked against."""
        form = self.prompt.params.structured_outputs
        assert form is not None, "nothing to check"
        return form

    def list_texts(self) -> dict[int, str]:
        """The finished texts to check, by choice."""
        choices = self.collector.choices
        ended = [index for index in self._open if choices[index].finish == Finish.STOP.value]
        return {index: choices[index].read().text for index in ended}

    def retry(self, verdicts: Verdicts, id: str) -> Collector | None:
        """The next attempt at the choices that are not valid; None where there is none."""
        choices = self.collector.choices
        for index in self._open:
            choices[index].report = AttemptReport(self._count, verdicts.get(index, False))
        self._open = [index for index in self._open if verdicts.get(index, True) is False]
        most = self.collector.request.max_tokens
        left = min((most - choices[i].spent for i in self._open), default=0)
        if left <= 0 or self._count >= MOST_ATTEMPTS:
            return None
        params = self.prompt.params
        again = replace(
            params,
            n=len(self._open),
            best_of=None,
            prompt_logprobs=None,
            seed=(self.collector.request.seed + self._count * SEED_STEP) % 2**63,
            temperature=max(params.temperature, LEAST_TEMPERATURE),
            max_tokens=left,
            min_tokens=min(params.min_tokens, left),
        )
        self._count += 1
        return self._make(replace(self.prompt, params=again), id)

    def take(self, attempt: Collector) -> None:
        """Puts the choices of a finished attempt in the places of those that were not valid."""
        self.collector.replace_choices(self._open, attempt)


class CheckedCollector(Collector):
    """Gathers the attempts at an answer as one request, and checks each where it is fed: for
    `LLM`, whose caller's schema it is.  There is nothing to read before the last one.
    """

    def __init__(self, prompt: PreparedPrompt, first: Collector, make: CollectorFactory) -> None:
        super().__init__(first.request, first.tokenizer, first.prompt, requested=first.requested)
        self._attempts = Attempts(prompt, self, make)
        self._is_valid = make_validator(self._attempts.outputs)
        self._running: Collector | None = None  # the attempt after the first
        self._next: Request | None = None
        self._settled = False

    @property
    def finished(self) -> bool:
        return self._settled

    @property
    def readable(self) -> bool:
        return self._settled

    def feed(self, event: Event) -> bool:
        running = self._running
        stopped = super().feed(event) if running is None else running.feed(event)
        if super().finished if running is None else running.finished:
            self._settle()
        return stopped

    def take_next(self) -> Request | None:
        request, self._next = self._next, None
        return request

    def _settle(self) -> None:
        """Checks a finished attempt, and makes the next one."""
        if self._running is not None:
            self._attempts.take(self._running)
        verdicts = {i: self._is_valid(text) for i, text in self._attempts.list_texts().items()}
        self._running = self._attempts.retry(verdicts, self.request.id)
        self._settled = self._running is None
        self._next = None if self._running is None else self._running.request
