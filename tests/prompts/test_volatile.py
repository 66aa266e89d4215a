"""What counts as volatile text, and where it is moved."""

import pytest

from flyweight.prompts.requests import SampleRequest
from flyweight.prompts.volatile import (
    find_differences,
    find_forms,
    find_segment,
    group_spans,
    move_last,
    vary,
)


def name(text: str) -> list[tuple[str, str]]:
    spans = find_forms(SampleRequest("a", (text,)))
    return [(one.kind, text[one.start : one.stop]) for one in spans]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Today is 2024-05-01.", "date", "2024-05-01"),
        ("on 31.12.2024 or so", "date", "31.12.2024"),
        ("on May 1, 2024", "date", "May 1, 2024"),
        ("on 1 September 2024", "date", "1 September 2024"),
        ("at 2024-05-01T12:30:05Z", "date and time", "2024-05-01T12:30:05Z"),
        ("Now: 12:30:05.", "time", "12:30:05"),
        ("at 9:05 pm", "time", "9:05 pm"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "UUID", "123e4567-e89b-12d3-a456-426614174000"),
        ("Session sess_9f82ab, go", "id", "sess_9f82ab"),
        ("request id: a81f22c0", "id", "a81f22c0"),
        ("hash 0123456789abcdef0123", "id", "0123456789abcdef0123"),
        ("at 1714566600 exactly", "Unix time", "1714566600"),
    ],
)
def test_forms(text: str, kind: str, value: str) -> None:
    assert name(text) == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "Use 3 sentences, at most 120 words.",
        "Version 2.10.1 of the API, port 8080.",
        "A scale of 1/10, 99:99, and 31-31-2024.",
        "The user-friendly request-based session-wide trace.",
        "may contain 2024 entries",
    ],
)
def test_plain_numbers_of_one_request_are_not_volatile(text: str) -> None:
    assert name(text) == []


def test_numbers_that_differ_between_requests_are() -> None:
    texts = ("Order 17, size 5, by 2024-05-01.", "Order 23, size 5, by 2024-05-01.")
    requests = [SampleRequest("a", (text,)) for text in texts]
    spans = find_differences(requests)
    found = [(s.kind, s.request, texts[s.request][s.start : s.stop]) for s in spans]
    assert found == [("number", 0, "17"), ("number", 1, "23")]


def test_after_other_text_nothing_is_compared() -> None:
    requests = [SampleRequest("a", (text,)) for text in ("Owl 1 has 5", "Fox 1 has 6")]
    assert find_differences(requests) == []


def test_segments_are_lines_and_sentences() -> None:
    text = "One. It is 12:30 now. Two.\nThree"
    assert text[slice(*find_segment(text, 12))] == "It is 12:30 now. "
    assert text[slice(*find_segment(text, 23))] == "Two.\n"
    assert text[slice(*find_segment(text, 30))] == "Three"


def move(request: SampleRequest) -> SampleRequest:
    groups = group_spans([request], find_forms(request))
    return move_last(request, [group.segments[0] for group in groups])


def test_text_moves_before_the_last_line() -> None:
    request = SampleRequest("a", ("It is 12:30.\nBe kind. Today is 2024-05-01.\nYes?\nAnswer:",))
    moved = "Be kind. \nYes?\nIt is 12:30.\nToday is 2024-05-01.\nAnswer:"
    assert move(request).texts == (moved,)


def test_text_moves_behind_the_last_message_of_the_user() -> None:
    messages = [
        {"role": "system", "content": "It is 12:30.\nBe kind."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
    ]
    moved = move(SampleRequest.of_messages("a", messages))
    assert moved.texts == ("Be kind.", "Hello\nIt is 12:30.", "Hi.")
    assert [one["content"] for one in moved.messages] == list(moved.texts)


def test_a_variant_has_other_digits_of_the_same_number() -> None:
    request = SampleRequest("a", ("2024-05-01 and 7",))
    assert vary(request, find_forms(request)).texts == ("5357-38-34 and 7",)
