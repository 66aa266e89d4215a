"""Finds what keeps the prefix cache from being used: volatile text before stable text, and chat
templates that write a conversation differently when it goes on.

Invariant: hit rates are computed from the blocks of whole prompts, with and without the finding;
volatile text is a finding only where leaving it in its place costs blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flyweight.prompts.drift import find_drift
from flyweight.prompts.rendering import PromptRenderer, RenderedPrompt
from flyweight.prompts.requests import SampleRequest
from flyweight.prompts.reuse import PredictedReuse, predict_reuse
from flyweight.prompts.sections import SectionTokens, count_sections, find_section
from flyweight.prompts.volatile import (
    VolatileGroup,
    find_differences,
    find_forms,
    group_spans,
    move_last,
    vary,
)
from flyweight.text.tokenizer import Tokenizer

MOST_GROUPS = 16  # places that are tried one by one
MOST_TALKS = 8  # conversations whose turns are compared
CLOCK = "strftime_now"


@dataclass(frozen=True, slots=True)
class PromptFinding:
    """`token` is the index of the first token concerned, `lost` how many tokens are computed again
    because of it, in all requests.
    """

    rule: str
    where: str
    section: str
    token: int
    lost: int
    problem: str
    fix: str


@dataclass(frozen=True, slots=True)
class PromptLint:
    """`now` and `moved` are the predicted reuse of the requests as they are and with volatile text
    last; of a single request, that of the next one like it (`single`).
    """

    requests: int
    tokens: int
    block_size: int
    sections: tuple[SectionTokens, ...]
    findings: tuple[PromptFinding, ...]
    now: PredictedReuse
    moved: PredictedReuse
    single: bool


@dataclass(frozen=True, slots=True)
class LintSamples:
    """Requests with their volatile places; a single one is followed by a copy that differs in
    them (`copied`).
    """

    requests: tuple[SampleRequest, ...]
    groups: tuple[VolatileGroup, ...]
    copied: bool

    @classmethod
    def of(cls, requests: Sequence[SampleRequest]) -> "LintSamples":
        if len(requests) > 1:
            return cls(tuple(requests), group_spans(requests, find_differences(requests)), False)
        (request,) = requests
        spans = find_forms(request)
        pair = (request, vary(request, spans))
        both = [*spans, *(replace(one, request=1) for one in spans)]
        return cls(pair, group_spans(pair, both), True)

    def move(self, groups: Sequence[VolatileGroup]) -> list[SampleRequest]:
        """The requests with the segments of these groups behind their other text."""
        found = []
        for i, request in enumerate(self.requests):
            segments = [one.segments[i] for one in groups if i in one.segments]
            found.append(move_last(request, segments) if segments else request)
        return found


class PromptLinter:
    """Checks requests for one model and block size."""

    def __init__(self, tokenizer: Tokenizer, block_size: int) -> None:
        self.renderer, self.block_size = PromptRenderer(tokenizer), block_size

    def lint(self, requests: Sequence[SampleRequest]) -> PromptLint:
        """Raises `RequestError` where the chat template refuses a request."""
        prompts = [self.renderer.render(request) for request in requests]
        samples = LintSamples.of(requests)
        now, moved = self._predict(samples, ()), self._predict(samples, samples.groups)
        found = list(self._check_template(requests, prompts))
        if moved.found > now.found:
            found[:0] = self._judge_groups(samples, moved)
        else:
            moved = now
        sections = tuple(count_sections(requests, prompts))
        tokens = sum(len(prompt.ids) for prompt in prompts)
        return PromptLint(
            len(requests), tokens, self.block_size, sections, tuple(found), now, moved,
            samples.copied,
        )  # fmt: skip

    def _predict(self, samples: LintSamples, groups: Sequence[VolatileGroup]) -> PredictedReuse:
        """The reuse of the requests with these groups behind their other text.  Of a request and
        its copy, that of the copy.
        """
        pairs = zip(samples.requests, samples.move(groups), strict=True)
        prompts = [self.renderer.encode_changed(request, moved) for request, moved in pairs]
        found = predict_reuse(prompts, self.block_size)
        return PredictedReuse(found.hits[1:], len(prompts[1])) if samples.copied else found

    def _judge_groups(self, samples: LintSamples, moved: PredictedReuse) -> Iterator[PromptFinding]:
        """A finding for each place that costs blocks while all others are moved."""
        for group in samples.groups[:MOST_GROUPS]:
            others = [one for one in samples.groups if one is not group]
            lost = moved.found - self._predict(samples, others).found
            if lost > 0:
                yield self._describe(samples, group, lost)

    def _describe(self, samples: LintSamples, group: VolatileGroup, lost: int) -> PromptFinding:
        first = group.spans[0]
        request = samples.requests[first.request]
        values = list(
            dict.fromkeys(
                f"{one.kind} {request.texts[one.index][one.start : one.stop]!r}"
                for one in group.spans
                if one.request == first.request
            )
        )
        prompt = self.renderer.render(request)
        place = prompt.places[first.index]
        token = 0 if place is None else prompt.count(place[0] + first.start)
        many = "" if samples.copied else f" in {len(group.segments)} requests"
        end = "the end of the last message" if request.messages else "the last line"
        return PromptFinding(
            "volatile",
            request.where,
            find_section(request, first.index, first.start),
            token,
            lost,
            f"{', '.join(values[:3])} comes before text that stays the same{many}",
            f"move the line to {end}, or leave it out",
        )

    def _check_template(
        self, requests: Sequence[SampleRequest], prompts: Sequence[RenderedPrompt]
    ) -> Iterator[PromptFinding]:
        template = self.renderer.template
        if CLOCK in template and any(request.messages for request in requests):
            yield PromptFinding(
                "clock", "chat template", "", 0, 0, f"the template writes the time ({CLOCK})",
                "give the template a fixed date, if it has a variable for one",
            )  # fmt: skip
        drifts: set[tuple[str, str]] = set()
        for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            yield from _list_hidden(request, prompt)
            for found in find_drift(self.renderer, request) if i < MOST_TALKS else ():
                if (found.expected, found.got) in drifts:
                    continue
                drifts.add((found.expected, found.got))
                yield PromptFinding(
                    "drift",
                    request.where,
                    f"messages.{found.turn} assistant",
                    found.token,
                    found.lost,
                    f"the next turn has {found.got!r} where this one had {found.expected!r}",
                    "send earlier answers unchanged, or use a template that writes them so",
                )


def _list_hidden(request: SampleRequest, prompt: RenderedPrompt) -> Iterator[PromptFinding]:
    for index, place in enumerate(prompt.places):
        if place is None:
            yield PromptFinding(
                "hidden", request.where, request.name_text(index), 0, 0,
                "the chat template changes this message or leaves it out",
                "check the prompt with flyweight tokenize",
            )  # fmt: skip
