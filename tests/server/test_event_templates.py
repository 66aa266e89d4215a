"""Chunks that are spliced are the very bytes that encoding them whole gives."""

import json

import pytest

from flyweight.server.transport.replies import EventTemplate, encode_event


@pytest.mark.parametrize(
    "text", ["", " a", '"quoted"\\', "\n\r\t\x00\x7f", "é\u2028\U0001f600", "]}"]
)
@pytest.mark.parametrize("model", ["m", 'odd"name\\', "data: \n\n"])
def test_a_spliced_event_is_the_event(text: str, model: str) -> None:
    def make(text: str) -> object:
        return {"model": model, "choices": [{"index": 3, "text": text, "finish_reason": None}]}

    found = EventTemplate(make)(text)
    assert found == encode_event(make(text))
    assert found.startswith(b"data: ") and found.endswith(b"\n\n") and found.count(b"\n") == 2
    assert json.loads(found[6:]) == make(text)
