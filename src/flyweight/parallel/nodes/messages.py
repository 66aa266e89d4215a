"""What nodes say to each other, and what two of them must have in common.

Node r says hello, and node 0 compares that with its own.  It answers with a refusal, or with the
setups of the ranks that the node is to start.  Then keys and reports of ranks are exchanged.

Invariant: a hello of another version is understood as far as its version.  Knows no network.
"""

from typing import Any

import msgspec

from flyweight.parallel.rendezvous import KeyValue, RankEnded, RankReport
from flyweight.parallel.sharding import RankPlace

LOOPBACK = "127.0.0.1"


class RankSetup(msgspec.Struct):
    """What a rank is started with: its place, the first and the number of each stage's layers, and
    the `address` at which other ranks reach it.  It stays on these `cores`, if there are any;
    `local_rank` is its number among those of its node, and of its GPU.
    """

    settings: dict[str, Any]
    rank: int
    stages: list[tuple[int, int]]
    address: str
    limits: dict[str, Any]
    kv_dtype: str
    cores: list[int] = []
    local_rank: int = 0

    @property
    def place(self) -> RankPlace:
        stages = tuple(range(first, first + count) for first, count in self.stages)
        tensor = self.settings["tensor_parallel_size"]
        return RankPlace(self.rank, tensor, stages, self.settings["enable_expert_parallel"])


class NodeHello(msgspec.Struct, tag="hello"):
    """What a node is: its version, hashes of its `code` and of its `weights`, instruction set and
    options; and the K/V blocks and the context that it has memory for.
    """

    node: int
    version: str
    code: str = ""
    weights: str = ""
    isa: str = ""
    options: dict[str, str] = {}
    blocks: int = 0
    max_model_len: int = 0


class NodeRefused(msgspec.Struct, tag="refused"):
    problem: str


class StartRanks(msgspec.Struct, tag="start"):
    """The ranks of the node, in order."""

    setups: list[RankSetup]


class ServerEnded(msgspec.Struct, tag="bye"):
    """Node 0 ends; `problem` is why, where it did not end as planned."""

    problem: str = ""


NodeMessage = NodeHello | NodeRefused | StartRanks | ServerEnded | KeyValue | RankReport | RankEnded


def find_difference(theirs: NodeHello, ours: NodeHello) -> str:
    """What a node has that differs from node 0's, in one line; empty where nothing does."""
    node = f"node {theirs.node}"
    if theirs.version != ours.version:
        return f"{node} has flyweight {theirs.version}, node 0 has {ours.version}; install the same"
    if theirs.code != ours.code:
        return (
            f"{node} has another build of flyweight {ours.version}: {theirs.code}, node 0 has "
            f"{ours.code}; install the same"
        )
    if theirs.weights != ours.weights:
        return (
            f"{node} has other weights: fingerprint {theirs.weights}, node 0 has {ours.weights}; "
            "give both the same model"
        )
    for name in sorted(ours.options.keys() | theirs.options.keys()):
        there, here = theirs.options.get(name), ours.options.get(name)
        if there != here:
            return f"{node} has {name} = {there}, node 0 has {here}; give both the same"
    if theirs.isa != ours.isa:
        return (
            f"{node} computes with {theirs.isa}, node 0 with {ours.isa}; set FLYWEIGHT_ISA to one "
            "that both have"
        )
    return ""
