"""Which requests may share one computation: the same in all that decides their answers.

Invariant: two requests with one key have equal answers, bit for bit, and one tenant and adapter.
Knows no engine.
"""

from math import inf
from typing import Any

import msgspec

from flyweight.server.pipe import Submit
from flyweight.types import Request

_encoder = msgspec.msgpack.Encoder()


def make_key(request: Request) -> bytes | None:
    """None where no other request can share the answer: it describes the cache, has its own cost,
    or functions change it.  Greedy answers and vectors do not depend on the seed, and none on its
    deadline: a request that joins another starts when that does.
    """
    if request.explain or request.measure or request.params.logits_processors:
        return None
    greedy = request.params.temperature == 0 and request.beam is None
    seed = 0 if greedy or request.pooling is not None else request.seed
    own: dict[str, Any] = {"id": "", "arrival": 0.0, "seed": seed, "start_by": inf}
    same = msgspec.structs.replace(Submit.of(request), **own)
    return _encoder.encode(same)
