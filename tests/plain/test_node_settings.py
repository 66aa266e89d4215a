"""Settings of a model over several nodes: what is refused before anything is opened."""

from typing import Any

import pytest

from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.validation.nodes import is_loopback

PAIR: dict[str, Any] = {"tensor_parallel_size": 2, "nnodes": 2}
FAR = {**PAIR, "master_addr": "10.0.0.1"}


@pytest.mark.parametrize(
    "given, said",
    [
        ({"nnodes": 2}, "nnodes = 2 nodes cannot have as many of the 1 ranks each; allowed: 1; "
         "set tensor_parallel_size too"),
        ({**PAIR, "nnodes": 3}, "nnodes = 3 nodes cannot have as many of the 2 ranks each; "
         "allowed: 1, 2; nearest valid: 2"),
        ({**PAIR, "node_rank": 2}, "node_rank = 2 is out of range with nnodes = 2; allowed: a "
         "whole number, 0 to 1; nearest valid: 1"),
        ({**PAIR, "master_port": 0}, "master_port = 0 is out of range; allowed: a whole number, 1 "
         "to 65535; nearest valid: 1"),
        ({**PAIR, "master_addr": " "}, "master_addr = ' ' is not valid; allowed: an address of "
         "node 0's host"),
        (FAR, "master_addr = '10.0.0.1' is not loopback, and needs a secret that the nodes share; "
         "give node_secret_file too; openssl rand -hex 32 > FILE; chmod 600 FILE; copy it to all "
         "hosts"),
        ({"node_rank": 1}, "node_rank = 1 has no effect on one node; give nnodes too"),
        ({"master_addr": "10.0.0.1"}, "master_addr = '10.0.0.1' has no effect on one node; give "
         "nnodes too"),
        ({"node_secret_file": "x"}, "node_secret_file = 'x' has no effect on one node; give nnodes "
         "too"),
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.of(**given)
    assert str(refused.value) == said


def test_ranks_of_a_node() -> None:
    four = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert [Settings.of(**four, nnodes=n).local_ranks for n in (1, 2, 4)] == [4, 2, 1]
    assert Settings.of(**FAR, node_secret_file="secret").local_ranks == 1


def test_loopback() -> None:
    near = ("127.0.0.1", "127.1.2.3", "::1", "localhost")
    assert [is_loopback(host) for host in (*near, "10.0.0.1", "0.0.0.0", "::", "host")] == (
        [True] * 4 + [False] * 4
    )
