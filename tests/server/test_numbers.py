"""Numbers that JSON does not have, as Python's json writes them: refused by the field's name."""

from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.server.apis.body import read_body
from flyweight.server.apis.openai.completions import CompletionBody
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import to_http_error


def refusal(raw: str) -> RequestError:
    request: Any = None
    with pytest.raises(RequestError) as caught:
        read_body(ServerSettings(), request, raw.encode(), CompletionBody)
    assert to_http_error(caught.value).status == 400
    return caught.value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "seed", "n", "prompt"])
def test_a_number_that_is_none_names_its_field(name: str, number: str) -> None:
    error = refusal(f'{{"model": "m", "prompt": "NaN", "{name}": {number}, "user": "x"}}')
    assert error.path == name and error.code == "bad_value"
    assert str(error) == f"{name} = {number} is not valid; allowed: finite numbers"


def test_a_place_within_a_field_is_reported() -> None:
    assert refusal('{"logit_bias": {"5": 1, "7": NaN}, "n": NaN}').path == "logit_bias.7"
    assert refusal('{"prompt": [1, 2, Infinity]}').path == "prompt.2"


@pytest.mark.parametrize(
    "raw", ["NaN", "[NaN]", '{"prompt": NaN', '{"n": nan}', '{"a": NaN, "b": }', '{"a": "NaN",}',
            "[" * 100_000 + "NaN", '{"n": %s, "top_p": NaN}' % ("9" * 10**4)],
)  # fmt: skip
def test_what_is_no_json_either_way_is_refused(raw: str) -> None:
    assert len(str(refusal(raw))) < 300
