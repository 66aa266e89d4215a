"""Keys of prompts: those of a replica's own prefix cache, and none in common between tenants."""

import random
from array import array

from flyweight.config import Limits
from flyweight.engine.prefix import KeyBase
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.routing.keys import RoutingKeys
from flyweight.types import Request, SamplingParams

KEYS = RoutingKeys("model", b"secret", 4)


def test_keys_are_those_of_a_prefix_cache() -> None:
    limits = Limits(
        max_model_len=64, max_num_seqs=1, max_num_batched_tokens=64, block_size=4, blocks=16
    )
    base = KeyBase("model", b"secret")
    scheduler = Scheduler(limits, BlockPool(16, 4), keys=base)
    tokens = tuple(range(30))
    scheduler.add(Request("a", tokens, SamplingParams(), salt="tenant", adapter="lora"))
    [seq] = scheduler.waiting
    scheduler.pool.match(seq.table, array("i", tokens))
    assert KEYS.make_keys(tokens, "tenant", "lora") == seq.table.hashes


def test_only_blocks_that_may_be_found_have_keys() -> None:
    """The last token is always computed."""
    lengths = {n: len(KEYS.make_keys(range(n))) for n in (0, 1, 4, 5, 8, 9, 12)}
    assert lengths == {0: 0, 1: 0, 4: 0, 5: 1, 8: 1, 9: 2, 12: 2}


def test_prompts_share_keys_up_to_the_first_block_that_differs() -> None:
    a, b = list(range(40)), list(range(40))
    b[17] = 99  # in the fifth block
    ours, theirs = KEYS.make_keys(a), KEYS.make_keys(b)
    assert ours[:4] == theirs[:4]
    assert set(ours[4:]).isdisjoint(theirs[4:])


def test_tenants_adapters_models_and_secrets_share_nothing() -> None:
    tokens = [random.Random(1).randrange(1000) for _ in range(41)]
    kinds = [
        KEYS.make_keys(tokens),
        KEYS.make_keys(tokens, salt="a"),
        KEYS.make_keys(tokens, salt="b"),
        KEYS.make_keys(tokens, adapter="a"),
        RoutingKeys("other", b"secret", 4).make_keys(tokens),
        RoutingKeys("model", b"another", 4).make_keys(tokens),
    ]
    assert [len(one) for one in kinds] == [10] * 6
    assert len({key for one in kinds for key in one}) == 60
