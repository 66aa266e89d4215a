"""How a replica is chosen: by cached prefix, in turn, or the less busy of two.

Invariant: a choice is one of the replicas that are given; the same calls with the same seed give
the same choices.  Standard library only; counts no work itself.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from flyweight.config import whole
from flyweight.errors import ConfigError, nearest
from flyweight.routing.prefix_index import PrefixIndex
from flyweight.routing.replica import Replica, Route

BOUND = 4096  # prompt tokens
POPULAR = 16  # uses


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    """`bound`: how much more work than the least busy replica one may have to be chosen for its
    cache, in prompt tokens.  `popular`: a block that was used so often is worth a copy on every
    replica.  `seed`: of random choices.
    """

    bound: int = BOUND
    popular: int = POPULAR
    seed: int = 0

    def __post_init__(self) -> None:
        whole("bound", self.bound, 0)
        whole("popular", self.popular, 1)


class RoutingPolicy(Protocol):
    """Chooses among replicas."""

    def add(self, replica: Replica) -> None:
        """A replica that may be chosen from now on."""

    def remove(self, replica: Replica) -> None:
        """A replica that is gone, with its cache."""

    def choose(self, chain: Sequence[bytes], replicas: Sequence[Replica]) -> Route:
        """The replica, of one or more in the order of being added, for a prompt whose blocks have
        these keys.
        """


class LongestPrefixPolicy:
    """The longest cached prefix, among the replicas that are at most the bound busier than the
    least busy one; of equal ones the least busy, then the one that was chosen longest ago.  Blocks
    that a replica has used often do not count: what many prompts begin with would otherwise keep
    them on the replica that has seen it first.
    """

    def __init__(self, options: RoutingOptions) -> None:
        self.bound, self.popular = options.bound, options.popular
        self.indexes: dict[str, PrefixIndex] = {}

    def add(self, replica: Replica) -> None:
        self.indexes[replica.name] = PrefixIndex(replica.blocks)

    def remove(self, replica: Replica) -> None:
        del self.indexes[replica.name]

    def choose(self, chain: Sequence[bytes], replicas: Sequence[Replica]) -> Route:
        most = min(one.work for one in replicas) + self.bound
        best, longest, cached = replicas[0], -1, 0
        for one in replicas:
            if one.work > most:
                continue
            index = self.indexes[one.name]
            found = index.count_prefix(chain)
            counted = found - index.count_popular(chain, found, self.popular)
            if counted > longest or (counted == longest and rank_idle(one) < rank_idle(best)):
                best, longest, cached = one, counted, found
        self.indexes[best.name].use(chain)
        return Route(best, cached)


class RoundRobinPolicy:
    """Each in turn: the one that was chosen longest ago."""

    def __init__(self, options: RoutingOptions) -> None:
        pass

    def add(self, replica: Replica) -> None:
        pass

    def remove(self, replica: Replica) -> None:
        pass

    def choose(self, chain: Sequence[bytes], replicas: Sequence[Replica]) -> Route:
        return Route(min(replicas, key=lambda one: (one.chosen, one.number)), 0)


class PowerOfTwoPolicy:
    """The less busy of two that are drawn; the one that was chosen longest ago where they are
    equal.
    """

    def __init__(self, options: RoutingOptions) -> None:
        self._draw = random.Random(options.seed)

    def add(self, replica: Replica) -> None:
        pass

    def remove(self, replica: Replica) -> None:
        pass

    def choose(self, chain: Sequence[bytes], replicas: Sequence[Replica]) -> Route:
        drawn = self._draw.sample(replicas, min(2, len(replicas)))
        return Route(min(drawn, key=rank_idle), 0)


def rank_idle(replica: Replica) -> tuple[int, int, int]:
    """The least busy first, of equal ones the one that was chosen longest ago."""
    return replica.work, replica.chosen, replica.number


POLICIES: Mapping[str, Callable[[RoutingOptions], RoutingPolicy]] = MappingProxyType(
    {
        "prefix": LongestPrefixPolicy,
        "round-robin": RoundRobinPolicy,
        "power-of-two": PowerOfTwoPolicy,
    }
)


def make_policy(name: str, options: RoutingOptions | None = None) -> RoutingPolicy:
    """A policy by its name.  Raises `ConfigError`."""
    if name not in POLICIES:
        raise ConfigError(
            f"is no routing policy{nearest(name, POLICIES)}", "routing", value=name,
            allowed=", ".join(POLICIES),
        )  # fmt: skip
    return POLICIES[name](options or RoutingOptions())
