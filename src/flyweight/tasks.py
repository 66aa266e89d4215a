"""What may be asked of a prompt beside sampled text.

Invariant: params that exist are valid.  Frozen data, standard library only.
"""

from dataclasses import dataclass

from flyweight.errors import RequestError, nearest
from flyweight.ranges import require

POOLINGS = ("last", "mean", "cls")


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a prompt's hidden states become one vector: the `last` token's, the `mean` of all, or the
    first's (`cls`, which in a decoder has seen nothing but itself); of length 1 where
    `normalize`.  Raises `RequestError`.
    """

    pooling: str = "last"
    normalize: bool = True

    def __post_init__(self) -> None:
        kind = self.pooling if isinstance(self.pooling, str) else repr(self.pooling)
        if kind not in POOLINGS:
            raise RequestError(
                f"pooling = {self.pooling!r} is not valid; allowed: {', '.join(POOLINGS)}"
                f"{nearest(kind, POOLINGS)}",
                "pooling",
            )
        flag = self.normalize
        require(isinstance(flag, bool), "normalize", flag, "true or false")
