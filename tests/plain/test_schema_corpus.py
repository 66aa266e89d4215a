"""The corpus of schemas that other people wrote: how many are refused may not grow."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flyweight.sampling.grammar import Compiler, byte_vocabulary
from schema_corpus import corpus, listed, reason, verdict

REFUSED = 0.083  # of all


def test_no_more_of_the_corpus_is_refused(data: Callable[[str], Path]) -> None:
    known, found = listed(), corpus(data("prompts-bfcl").parent)
    here = {name: schema for name, (_, schema) in found.items() if name in known}
    if len(here) < 0.9 * len(known):
        pytest.skip(f"{len(here)} of the corpus' {len(known)} schemas are installed")
    compiler = Compiler(byte_vocabulary())
    verdicts = {name: verdict(compiler, schema) for name, schema in here.items()}
    refused = [name for name, why in verdicts.items() if why]
    assert [known[name][0] for name in refused if known[name][1] == reason("")] == []
    assert len(refused) <= REFUSED * len(here)
