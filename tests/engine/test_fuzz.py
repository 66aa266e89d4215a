"""Random workloads through the engine: every answer is the oracle's, whatever the company and the
memory.
"""

from collections import Counter

import pytest
from workload import Harness, workload

WORKLOADS = 1600
LONG = 32  # times as many with --long
PARTS = 4
OFTEN = (
    "preemption",
    "eviction",
    "mid-prefill abort",
    "partial hit",
    "rejected draft",
    "accepted draft",
    "copy-on-write",
    "shared prefill",
    "restored block",
    "peer block",
    "peer given up",
    "vector",
    "scored rows",
    "search",
    "prefill-only",
    "repetition",
    "thought",
)


@pytest.fixture(scope="module")
def counts():
    return Counter()


@pytest.fixture(scope="module")
def workloads(at_length):
    return WORKLOADS * (LONG if at_length else 1)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_answer_is_the_oracles(part, counts, workloads):
    for seed in range(part, workloads, PARTS):
        harness = Harness(workload(seed))
        try:
            harness.run()
        except Exception as wrong:
            raise AssertionError(f"workload({seed})") from wrong
        counts.update(harness.counts)
    counts["workloads"] += workloads // PARTS


def test_everything_was_met_often_enough(counts):
    if counts["workloads"] < WORKLOADS:
        pytest.skip("needs all parts of the fuzz in this run")
    assert {name: n for name in OFTEN if (n := counts[name]) < 200} == {}
