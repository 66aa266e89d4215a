"""Sections of a prompt, and how many tokens each has.

A section begins at a line `[NAME]`, at a Markdown heading outside code, or at a message.

Invariant: the tokens of all sections of a prompt add up to the tokens of the prompt.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flyweight.prompts.rendering import RenderedPrompt
from flyweight.prompts.requests import SampleRequest

BEGINNING = "(beginning)"  # of a text, before its first header
TEMPLATE = "(chat template)"
HEADER = re.compile(r"[ \t]*(\[[A-Z][A-Z0-9 _/-]*\])|(#{1,6}[ \t]+\S[^\n]*)")
FENCE = re.compile(r"[ \t]*(```|~~~)")
LONGEST_TITLE = 40  # characters


@dataclass(frozen=True, slots=True)
class TextSection:
    """Characters [start, stop) of a text."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SectionTokens:
    """Tokens of the sections of one name, in as many requests as have one."""

    name: str
    requests: int
    tokens: int


def split_sections(text: str) -> list[TextSection]:
    """The sections of a text, which cover it."""
    starts: list[tuple[str, int]] = []
    at, fenced = 0, False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line):
            fenced = not fenced
        header = None if fenced else HEADER.match(line)
        if header is not None:
            starts.append(((header[1] or header[2]).strip()[:LONGEST_TITLE], at))
        at += len(line)
    if not starts or text[: starts[0][1]].strip():
        starts.insert(0, (BEGINNING, 0))
    starts[0] = (starts[0][0], 0)
    stops = [start for _, start in starts[1:]] + [len(text)]
    return [
        TextSection(name, start, stop) for (name, start), stop in zip(starts, stops, strict=True)
    ]


def find_section(request: SampleRequest, index: int, place: int) -> str:
    """The name of the section that a character of a text is in."""
    inside = next(
        one for one in reversed(split_sections(request.texts[index])) if one.start <= place
    )
    return _join(request.name_text(index), inside.name)


def _join(message: str, section: str) -> str:
    if not message:
        return section
    return message if section == BEGINNING else f"{message} {section}"


def count_sections(
    requests: Sequence[SampleRequest], prompts: Sequence[RenderedPrompt]
) -> list[SectionTokens]:
    """The tokens of each section over all requests, in the order in which names appear."""
    found: dict[str, list[int]] = {}
    for request, prompt in zip(requests, prompts, strict=True):
        own: dict[str, int] = {}
        for name, tokens in _count(request, prompt):
            own[name] = own.get(name, 0) + tokens
        for name, tokens in own.items():
            found.setdefault(name, []).append(tokens)
    return [SectionTokens(name, len(counts), sum(counts)) for name, counts in found.items()]


def _count(request: SampleRequest, prompt: RenderedPrompt) -> Iterator[tuple[str, int]]:
    """Sections with their tokens: what is between the texts is the template's."""
    before, template = 0, 0
    shown_places = [(place, index) for index, place in enumerate(prompt.places) if place]
    for (start, stop), index in sorted(shown_places):
        if request.messages:
            begun = max(before, prompt.count(start))
            template += begun - before
            before = begun
        shown = prompt.text[start:stop]
        for section in split_sections(shown):
            reached = max(before, prompt.count(start + section.stop))
            yield _join(request.name_text(index), section.name), reached - before
            before = reached
    if request.messages:
        yield TEMPLATE, template + len(prompt.ids) - before
