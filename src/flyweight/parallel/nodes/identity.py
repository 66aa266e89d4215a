"""What a node is, as it says in its hello.

Invariant: equal hellos mean the same weights, byte for byte, and the same arithmetic.  Reads the
weights' files once.
"""

from dataclasses import fields
from hashlib import blake2b

from flyweight import __version__
from flyweight.config import Settings
from flyweight.describe import ModelDescription
from flyweight.external_cache import read_code
from flyweight.ops.base import Ops
from flyweight.parallel.nodes.messages import NodeHello
from flyweight.plan.memory import MemoryPlan

# Of `Settings`: what each node has of its own, and what node 0 alone uses.
OWN = {
    "model", "revision", "offline", "load_format", "max_kld", "packed_cache", "memory_limit",
    "threads", "isa", "node_rank", "master_addr", "master_port", "node_secret_file",
    "distributed_timeout_seconds", "max_logprobs", "seed",
}  # fmt: skip
SHOWN = 12  # digits of a hash


def make_hello(
    settings: Settings, found: ModelDescription, ops: Ops, memory: MemoryPlan
) -> NodeHello:
    """`memory` is the plan of the node's first rank."""
    checkpoint = found.checkpoint
    weights = blake2b()
    for part in (checkpoint.fingerprint, *checkpoint.compute_digests(), checkpoint.quantisation):
        weights.update(part if isinstance(part, bytes) else repr(part).encode())
    names = [known.name for known in fields(Settings) if known.name not in OWN]
    return NodeHello(
        node=settings.node_rank,
        version=__version__,
        code=read_code(settings.backend).hex()[:SHOWN],
        weights=weights.hexdigest()[:SHOWN],
        isa=str(getattr(ops, "isa", "numpy")),
        options={name: str(getattr(settings, name)) for name in names},
        blocks=memory.blocks,
        max_model_len=memory.sizing.max_model_len,
    )
