"""docs/errors.md lists every code that the source raises, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    FlyweightError,
    RequestError,
    field_names,
    translate_path,
)
from flyweight.server.transport.errors import CODES

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \|", re.MULTILINE)


def raised() -> Iterator[str]:
    for path in (ROOT / "src" / "flyweight").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                codes = (one.value for one in node.keywords if one.arg == "code")
                parts = (part for one in codes for part in ast.walk(one))
                found = (one.value for one in parts if isinstance(one, ast.Constant) and one.value)
                yield from (code for code in found if isinstance(code, str))


def test_every_code_is_documented() -> None:
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    made = {RequestError("", value=1).code, RequestError("").code, *CODES.values()}
    assert {code for _, code in rows} == {*raised(), *made}
    assert rows == sorted(rows) and len(rows) == len({code for _, code in rows})


@pytest.mark.parametrize("kind", [RequestError, ConfigError, CheckpointError, EngineError])
@pytest.mark.parametrize("value", [..., None, "", "x" * 100, 5, 2**70, 0.5, [1, "a"], b"\x1b"])
def test_an_error_survives_a_pipe(kind: type[FlyweightError], value: object) -> None:
    error = kind("is not valid", "a.b", value=value, allowed="1 to 4", hint="leave it out")
    again = kind(**error.data)
    assert again.code == error.code and again.path == "a.b" and str(again).isprintable()
    if not isinstance(value, list | bytes) and value != 2**70:
        assert str(again) == str(error)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("stop", "stop_sequences"), ("stop.1", "stop_sequences.1"), ("stopped", "stopped"),
        ("tools.3.function.parameters.type", "tools.3.input_schema.type"),
        ("tools.3.function.name", "tools.3.name"), ("tools", "tools"), ("", ""),
    ],
)  # fmt: skip
def test_paths_are_translated(path: str, found: str) -> None:
    names = {
        "stop": "stop_sequences",
        "tools.*.function.parameters": "tools.*.input_schema",
        "tools.*.function": "tools.*",
    }
    assert translate_path(path, names) == found
    with pytest.raises(RequestError) as caught, field_names(names):
        raise RequestError("is not valid", path, value="stop")
    assert caught.value.path == found and caught.value.value == "stop"


def test_texts_have_one_form() -> None:
    error = RequestError("is out of range", "n", value=0, allowed="1 to 4", hint="nearest valid: 1")
    assert str(error) == "n = 0 is out of range; allowed: 1 to 4; nearest valid: 1"
    assert str(RequestError(": no", "a")) == "a: no" and str(RequestError("no")) == "no"
