"""Rules and schemas that lead so deep into each other that a library's stack would end: refused
before it sees them, and what is within the bounds ends no process, on a stack half as large.
"""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.levels import DEEPEST, MOST_LOOPED, check_rules, check_schema
from flyweight.testing import make_acceptor

SMALL_STACK = """
import json, sys, threading
from flyweight.params.structured import StructuredOutputs
from flyweight.testing import make_acceptor
given = json.load(sys.stdin)
threading.stack_size(4 << 20)
told = []
def run():
    told.append(make_acceptor(StructuredOutputs(**given))("y" + "x"))
thread = threading.Thread(target=run)
thread.start()
thread.join()
print(len(told))
"""


def chain(count: int, form: str = "r{}: r{}", last: str = 'r{}: "x"') -> str:
    rules = [form.replace("{}", str(i), 1).replace("{}", str(i + 1)) for i in range(count)]
    return "\n".join(["start: r0", *rules, last.format(count)])


def refs(count: int, wrap: str | None = None) -> dict[str, Any]:
    def to(i: int) -> dict[str, Any]:
        ref = {"$ref": f"#/$defs/{i}"}
        if wrap is None:
            return ref
        return {wrap: [ref, {"type": "null"}] if wrap == "anyOf" else ref}

    return {**to(0), "$defs": {**{str(i): to(i + 1) for i in range(count)}, str(count): {}}}


NESTED = "r{}: " + '("y" ' * 9 + "r{}" + ")*" * 9
LONG = {
    "rules": {"grammar": chain(2000)},
    "brackets in rules": {"grammar": chain(180, NESTED)},
    "terminals": {"grammar": chain(2000).replace("r", "T").replace("staTt", "start")},
    "attributes": {"grammar": chain(1000, "r{}[max_tokens=9] : r{} // r1: x")},
    "a circle": {"grammar": chain(1500, 'r{}: r{}|"y"', 'r{}: "x" r0')},
    "references": {"json": refs(700)},
    "items": {"json": refs(700, "items")},
    "any of": {"json": refs(600, "anyOf")},
    "a schema in rules": {"grammar": "start: %json " + json.dumps(refs(700, "items"))},
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_what_leads_too_deep_is_refused(name: str) -> None:
    outputs = StructuredOutputs(**LONG[name])
    with pytest.raises(RequestError, match=r"structured_outputs\.(grammar|json): .*allowed: up to"):
        make_acceptor(outputs)


@pytest.mark.parametrize(
    "given",
    [
        {"grammar": chain(DEEPEST - 2)},
        {"grammar": chain(DEEPEST // 10 - 2, NESTED)},
        {"grammar": chain(MOST_LOOPED - 2, 'r{}: "y" r{}', 'r{}: "x" r0')},
        {"grammar": "start: %json " + json.dumps(refs(DEEPEST // 2 - 5, "items"))},
        {"json": refs(DEEPEST - 5)},
        {"json": refs(DEEPEST // 2 - 5, "items")},
        {"json": refs(DEEPEST // 3 - 5, "anyOf")},
    ],
)
def test_what_is_within_the_bounds_ends_no_process(given: dict[str, Any]) -> None:
    reported = subprocess.run(
        [sys.executable, "-c", SMALL_STACK], input=json.dumps(given), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert reported.returncode == 0 and reported.stdout == "1\n", reported.stderr[-500:]


def test_wide_grammars_are_not_deep() -> None:
    check_rules("start: a\n" + "\n".join(f'r{i}: a "x{i}"' for i in range(2000)) + '\na: "a"')
    named = "".join(f'b{i}: "c"\n' for i in range(1000))
    check_rules('start: a\na: "b: c" | /d: e/ // f: g\n' + named)
    check_schema({"properties": {f"a{i}": {"type": "string"} for i in range(2000)}})


@pytest.mark.parametrize("text", ["a" * 60_000, "a[" * 30_000, "a: " * 20_000, "%json " * 10_000,
                                  '%json "' * 9_000, "a{" * 30_000, "/" * 60_000, "a " * 30_000,
                                  "a::b" * 15_000, '"' * 60_000, ".1" * 30_000])  # fmt: skip
def test_hostile_texts_are_read_in_little_time(text: str) -> None:
    began = time.process_time()
    check_rules(text)
    assert time.process_time() - began < 1.0
