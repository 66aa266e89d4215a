"""The corpus of schemas that other people wrote: how many are refused may not grow.

410 of its 1,002 schemas come with `cmake`, which the suite does not install: each part has a bound
of its own, and the whole where nearly all of it is installed.  The bounds are `long`; the usual
suite compiles every fifth schema.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from flyweight.sampling.grammar import Compiler, byte_vocabulary
from schema_corpus import corpus, listed, reason, verdict

REFUSED = {"BFCL": 1, "cmake": 12, "other packages": 62}  # at most, of a part
OF_ALL = 0.075


@pytest.fixture(scope="module")
def verdicts(data: Callable[[str], Path], at_length: bool) -> dict[str, str]:
    """Why each listed schema that is installed is refused, by hash; empty where it is accepted."""
    known, found = listed(), corpus(data("prompts-bfcl").parent)
    compiler = Compiler(byte_vocabulary())
    some = sorted(known.keys() & found.keys())[:: 1 if at_length else 5]
    return {name: verdict(compiler, found[name][1]) for name in some}


def part_of(source: str) -> str:
    return next((part for part in REFUSED if source.startswith(part)), "other packages")


def test_what_was_accepted_is_not_refused(verdicts: dict[str, str]) -> None:
    known = listed()
    refused = [name for name, why in verdicts.items() if why]
    assert [known[name][0] for name in refused if known[name][1] == reason("")] == []


@pytest.mark.long
@pytest.mark.parametrize("part", REFUSED)
def test_no_more_of_a_part_is_refused(verdicts: dict[str, str], part: str) -> None:
    known = listed()
    found = [why for name, why in verdicts.items() if part_of(known[name][0]) == part]
    enough = len(found) >= 150 or part == "cmake"
    assert enough, "the schemas of the development packages are not installed"
    assert sum(map(bool, found)) <= REFUSED[part]


@pytest.mark.long
def test_no_more_of_all_are_refused(verdicts: dict[str, str]) -> None:
    """At most 12 % of what is installed, and fewer where that is nearly all."""
    refused = sum(map(bool, verdicts.values()))
    assert refused <= 0.12 * len(verdicts)
    if len(verdicts) >= 0.9 * len(listed()):
        assert refused <= OF_ALL * len(verdicts)
