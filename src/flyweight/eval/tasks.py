"""What tasks need of a model: log-likelihoods of continuations, and answers up to a stop string.

Invariant: log-probabilities are the engine's raw ones, and only rows of scored tokens go through
the model's head.  Windows that differ in their last token only share a request; those with the same
context follow each other at a distance, so that the prefix cache has what they share.  Knows no
task and no harness.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, TypeVar

from flyweight.errors import ConfigError, EngineError, FlyweightError, nearest
from flyweight.eval.scoring import Report
from flyweight.eval.windows import Window
from flyweight.llm import LLM
from flyweight.types import MAX_LOGPROBS, Event, Request, SamplingParams, TokenLogprobs

T = TypeVar("T")
Shared = tuple[tuple[int, ...], dict[int, Window]]  # tokens, and windows that end one later
TOGETHER = 16  # contexts and answers at once
MOST_TOKENS = 256  # of an answer where the task does not say
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
KNOWN = ("until", "do_sample", "temperature", *LENGTHS)


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The log-probability of a window's new tokens, and whether each of them is the likeliest."""

    total: float
    greedy: bool


class LikelihoodCollector:
    """Takes the events of one request: windows, by number, `known` except for the last token
    of each.
    """

    def __init__(self, known: tuple[int, ...], windows: Mapping[int, Window], number: int) -> None:
        self.windows = windows
        lasts = list(dict.fromkeys(window.tokens[-1] for window in windows.values()))
        params = SamplingParams(temperature=0, prompt_logprobs=0, logprob_token_ids=lasts)
        self.request = Request(
            id=f"continuation-{number}",
            tokens=known,
            params=params,
            max_tokens=1,
            score_from=len(known) - max(window.new for window in windows.values()),
        )
        self.finished = False
        self.error: FlyweightError | None = None
        self._scored: list[TokenLogprobs] = []
        self._last: dict[int, float] = {}
        self._drawn = -1

    def feed(self, event: Event) -> bool:
        self._scored += event.prompt_logprobs
        for token, found in zip(event.tokens, event.logprobs, strict=False):
            self._drawn = token
            self._last = dict(zip(found.top_ids, found.top, strict=True))
        self.error = self.error or event.error
        self.finished = event.finish is not None
        return False

    def take_next(self) -> Request | None:
        return None

    def read(self) -> dict[int, Likelihood]:
        """By the windows' numbers."""
        return {number: self._read_window(window) for number, window in self.windows.items()}

    def _read_window(self, window: Window) -> Likelihood:
        known = self._scored[len(self._scored) - (window.new - 1) :]
        last = window.tokens[-1]
        greedy = last == self._drawn and all(one.rank == 1 for one in known)
        return Likelihood(sum(one.chosen for one in known) + self._last[last], greedy)


def score_continuations(llm: LLM, windows: Sequence[Window], report: Report) -> list[Likelihood]:
    """Of every window's new tokens, which have at least one token before them.  Raises
    `EngineError`.
    """
    found: dict[int, Likelihood] = {}

    def take(news: Sequence[LikelihoodCollector]) -> None:
        for collector in news:
            if collector.error is not None:
                raise collector.error
            if collector.finished:
                found.update(collector.read())
        report(len(found), len(windows))

    report(0, len(windows))
    shared = enumerate(spread(share_requests(windows)))
    llm.loop.finish((LikelihoodCollector(known, part, i) for i, (known, part) in shared), take)
    return [found[i] for i in range(len(windows))]


def share_requests(windows: Sequence[Window]) -> Iterator[list[Shared]]:
    """The requests of each context."""
    contexts: dict[tuple[int, ...], dict[tuple[int, ...], list[dict[int, Window]]]] = {}
    for i, window in enumerate(windows):
        context = window.tokens[: -window.new]
        parts = contexts.setdefault(context, {}).setdefault(window.tokens[:-1], [{}])
        if len(parts[-1]) == MAX_LOGPROBS:
            parts.append({})
        parts[-1][i] = window
    for requests in contexts.values():
        yield [(known, part) for known, parts in requests.items() for part in parts]


def spread(groups: Iterable[list[T]]) -> Iterator[T]:
    """All elements; those of a group come after the others' at the same place in theirs, for
    `TOGETHER` groups at a time.
    """
    waiting = list(groups)
    for i in range(0, len(waiting), TOGETHER):
        for turn in zip_longest(*waiting[i : i + TOGETHER]):
            yield from (one for one in turn if one is not None)


def generate_answers(
    llm: LLM, prompts: Sequence[tuple[Sequence[int], SamplingParams]], report: Report
) -> list[str]:
    """The answers to prompts of token ids.  A prompt that leaves no room for its answer loses its
    beginning.  Raises `EngineError` and `RequestError`.
    """
    longest, done = llm.loaded.limits.max_model_len, 0

    def take(news: Sequence[Any]) -> None:
        nonlocal done
        done += sum(collector.finished for collector in news)
        report(done, len(prompts))

    report(0, len(prompts))
    collectors: list[Any] = []
    for tokens, params in prompts:
        room = max(1, longest - (params.max_tokens or 0))
        collectors.append(llm.make_collector({"prompt_token_ids": list(tokens)[-room:]}, params))
    llm.loop.finish(iter(collectors), take)
    answers = [collector.output().outputs[0] for collector in collectors]
    for answer in answers:
        if answer.finish_reason not in ("stop", "length"):
            raise EngineError(f"an answer ended with {answer.finish_reason}")
    return [answer.text for answer in answers]


def read_generation(given: Mapping[str, Any]) -> SamplingParams:
    """The sampling options of a task: greedy unless it says otherwise.  Raises `ConfigError` and
    `RequestError`.
    """
    options = {name: value for name, value in given.items() if name not in KNOWN}
    valid = [field.name for field in fields(SamplingParams)]
    for name in options:
        if name not in valid:
            raise ConfigError(f"is not an option here{nearest(name, valid)}", f"generation.{name}")
    until = given.get("until") or []
    lengths = [given[name] for name in LENGTHS if given.get(name) is not None]
    sample = given.get("do_sample")
    return SamplingParams(
        stop=[one for one in ([until] if isinstance(until, str) else until) if one],
        max_tokens=int(lengths[0]) if lengths else MOST_TOKENS,
        temperature=0 if sample is False else float(given.get("temperature") or 0),
        **options,
    )
