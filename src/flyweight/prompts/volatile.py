"""Text that is likely to differ from request to request: dates, times, UUIDs, ids, and numbers that
do differ between requests of one program.

Invariant: of one request, what has the form of a date, time or id counts as volatile; of several,
only what differs at a place up to which all other text is the same.  Knows no model.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flyweight.prompts.requests import SampleRequest

MONTHS = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    "Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
ISO = r"(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.](?:0?[1-9]|[12]\d|3[01])"
FORMS = {  # the first that fits is taken
    "UUID": r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
    "date and time": rf"\b{ISO}(?:T|,? ){CLOCK}(?:Z|[+-]\d\d:?\d\d)?",
    "date": (
        rf"\b{ISO}\b|\b(?:0?[1-9]|[12]\d|3[01])[/.](?:0?[1-9]|[12]\d|3[01])[/.](?:19|20)\d\d\b"
        rf"|\b{MONTHS}\.? \d{{1,2}}(?:st|nd|rd|th)?,? (?:19|20)\d\d\b"
        rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\.? {MONTHS}\.?,? (?:19|20)\d\d\b"
    ),
    "time": rf"(?<![\w.:]){CLOCK}(?: ?[AaPp]\.?[Mm]\b\.?)?(?![\w:])",
    "id": (
        r"\b(?:req|request|sess|session|trace|run|msg|thread|conv|user|chatcmpl|cmpl)[-_]"
        r"(?=[\w-]*\d)[\w-]{4,}\b"
        r"|(?i:(?<=id: )|(?<=id=)|(?<=id #))(?=[\w-]*\d)[\w-]{4,}\b"
        r"|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{16,}\b"
    ),
    "Unix time": r"\b1[5-9]\d{8}(?:\d{3})?\b",
}
NUMBER = r"\d+(?:[.,]\d+)*"
NAMED = "|".join(f"(?P<f{i}>{form})" for i, form in enumerate(FORMS.values()))
VOLATILE = re.compile(NAMED)
PIECES = re.compile(f"{NAMED}|{NUMBER}")
SEGMENT = re.compile(r"[^\n]*?(?:[.!?](?=[ \t]+\S)[ \t]+|\n|$)")  # a line, or a sentence of one


@dataclass(frozen=True, slots=True)
class VolatileSpan:
    """Volatile characters [start, stop) of text `index` of request `request`."""

    kind: str
    request: int
    index: int
    start: int
    stop: int


@dataclass(slots=True)
class VolatileGroup:
    """The same place in several requests: the line or sentence [start, stop) of a text of each, and
    the volatile text in it.
    """

    segments: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # index, start, stop
    spans: list[VolatileSpan] = field(default_factory=list)


def _name(found: re.Match[str]) -> str:
    known = zip(FORMS, found.groups(), strict=True)
    return next((kind for kind, text in known if text is not None), "number")


def find_forms(request: SampleRequest) -> list[VolatileSpan]:
    """What has the form of a date, time or id."""
    return [
        VolatileSpan(_name(found), 0, index, *found.span())
        for index, text in enumerate(request.texts)
        for found in VOLATILE.finditer(text)
    ]


def find_differences(requests: Sequence[SampleRequest]) -> list[VolatileSpan]:
    """Dates, ids and numbers that differ between requests whose text before them is the same, apart
    from such values.
    """
    values: dict[int, set[str]] = {}
    places: list[tuple[int, VolatileSpan, str]] = []
    for number, request in enumerate(requests):
        key = 0
        for index, text in enumerate(request.texts):
            at = 0
            for found in PIECES.finditer(text):
                key = hash((key, index, text[at : found.start()]))
                at = found.end()
                values.setdefault(key, set()).add(found[0])
                span = VolatileSpan(_name(found), number, index, *found.span())
                places.append((key, span, found[0]))
            key = hash((key, index, text[at:], "end"))
    return [span for key, span, _ in places if len(values[key]) > 1]


def group_spans(
    requests: Sequence[SampleRequest], spans: Sequence[VolatileSpan]
) -> tuple[VolatileGroup, ...]:
    """The spans by the line or sentence they are in; those of several requests belong together
    where they are at the same turn.
    """
    groups: dict[tuple[int, int], VolatileGroup] = {}
    turns: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
    for span in spans:
        start, stop = find_segment(requests[span.request].texts[span.index], span.start)
        own = turns.setdefault((span.request, span.index), {})
        turn = own.setdefault((start, stop), len(own))
        group = groups.setdefault((span.index, turn), VolatileGroup())
        group.segments[span.request] = (span.index, start, stop)
        group.spans.append(span)
    return tuple(groups[key] for key in sorted(groups))


def find_segment(text: str, place: int) -> tuple[int, int]:
    """The line, or the sentence of a line, that a character is in."""
    return next(found.span() for found in _iterate(text) if found.end() > place)


def _iterate(text: str) -> Iterator[re.Match[str]]:
    return (found for found in SEGMENT.finditer(text) if found[0])


def vary(request: SampleRequest, spans: Sequence[VolatileSpan]) -> SampleRequest:
    """The request with other digits in its volatile text."""
    texts = list(request.texts)
    for span in sorted(spans, key=lambda one: one.start, reverse=True):
        text = texts[span.index]
        other = re.sub(
            r"\d", lambda found: str((int(found[0]) + 3) % 10), text[span.start : span.stop]
        )
        texts[span.index] = text[: span.start] + other + text[span.stop :]
    return request.with_texts(texts)


def move_last(request: SampleRequest, segments: Sequence[tuple[int, int, int]]) -> SampleRequest:
    """The request with these segments (text, start, stop) behind its other text: at the end of the
    last message that is not an answer, or before the last line of a text.
    """
    texts = list(request.texts)
    moved = [texts[index][start:stop].strip() for index, start, stop in sorted(segments)]
    for index, start, stop in sorted(segments, reverse=True):
        text = texts[index]
        line = "\n" if text[start:stop].endswith("\n") and start and text[start - 1] != "\n" else ""
        texts[index] = text[:start] + line + text[stop:]
    roles = [message.get("role") for message in request.messages]
    asked = [i for i, role in enumerate(roles) if role not in ("assistant", "system", "developer")]
    if roles:
        at = asked[-1] if asked else len(roles) - 1
        texts[at] = "\n".join([texts[at].rstrip("\n"), *moved])
    else:
        head, end, tail = texts[0].rstrip("\n").rpartition("\n")
        texts[0] = "\n".join([head, *moved, tail] if end else [tail, *moved])
    return request.with_texts(texts)
