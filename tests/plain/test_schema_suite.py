"""JSON-Schema-Test-Suite: whatever schema is accepted, nothing invalid is; how many are accepted
may not fall.

Objects are closed unless they say otherwise, so the suite is read twice: as it is, where closed
objects may take less than is valid, and with every object opened in so many words.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.schema_keywords import LISTS, MAPS, SINGLE
from flyweight.testing import make_acceptor

FLOOR = 341  # of 461, of the suite's schemas
# Valid only where formats are annotations; here they are kept to, as `format` asks.
ANNOTATED = "is only an annotation by default"


def cases(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(root.rglob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(root)}: {case['description']}", case


def opened(schema: Any) -> Any:
    """The same schema, whose objects say that they may have other properties; as it is where that
    would change its meaning.
    """
    if "unevaluatedProperties" in json.dumps(schema):
        return schema
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in MAPS and isinstance(value, dict):
            found[name] = {key: opened(one) for key, one in value.items()}
        elif isinstance(value, list) and (name in LISTS or name == "items"):
            found[name] = [opened(one) for one in value]
        else:
            found[name] = opened(value) if name in SINGLE else value
    if found.keys() & {"properties", "patternProperties"}:
        found.setdefault("additionalProperties", True)
    return found


@pytest.mark.parametrize("closed", [False, True])
def test_nothing_invalid_is_accepted(data: Callable[[str], Path], closed: bool) -> None:
    root = data("schemas-json-schema-test-suite/draft2020-12")
    everything = list(cases(root))
    accepted, loose, right, valid = 0, [], 0, 0
    for name, case in everything:
        try:
            schema = case["schema"] if closed else opened(case["schema"])
            judge = make_acceptor(StructuredOutputs(json=schema))
        except RequestError as error:
            assert str(error).startswith("structured_outputs.json"), name
            continue
        accepted += 1
        for one in case["tests"]:
            passes = judge(json.dumps(one["data"], ensure_ascii=False))
            if passes and not one["valid"]:
                loose.append(f"{name}: {one['description']}")
            if one["valid"] and ANNOTATED not in one["description"]:
                valid += 1
                right += passes
    share = accepted / len(everything)
    print(f"{accepted} of {len(everything)} schemas ({share:.1%}); {right} of {valid} valid texts")
    assert loose == []
    assert accepted >= FLOOR
    assert right >= 0.9 * valid


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("date", 1),
        ("time", 0.4),
        ("date-time", 0.5),
        ("hostname", 0.3),  # no punycode
        ("uri-reference", 0.7),
        ("json-pointer", 0.9),
        ("relative-json-pointer", 1),
        ("regex", 1),
    ],
)
def test_formats_are_no_looser_than_the_suite(
    data: Callable[[str], Path], name: str, share: float
) -> None:
    """As above, one by one: these are patterns of ours."""
    path = data(f"schemas-json-schema-test-suite/draft2020-12/optional/format/{name}.json")
    judge = make_acceptor(StructuredOutputs(json={"type": "string", "format": name}))
    texts = [t for case in json.loads(path.read_text(encoding="utf-8")) for t in case["tests"]]
    strings = [t for t in texts if isinstance(t["data"], str)]
    passed = [t for t in strings if judge(json.dumps(t["data"], ensure_ascii=False))]
    assert [t["description"] for t in passed if not t["valid"]] == []
    assert len(passed) >= share * sum(t["valid"] for t in strings)
