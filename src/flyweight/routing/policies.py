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


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    """`bound`: how much more work than the least busy replica one may have to be chosen for its
    cache, in prompt tokens.  `seed`: of random choices.
    """

    bound: int = BOUND
    seed: int = 0

    def __post_init__(self) -> None:
        whole("bound", self.bound, 0)


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
    least busy one; of equal ones the least busy, then the one that was added first.
    """

    def __init__(self, options: RoutingOptions) -> None:
        self.bound = options.bound
        self.indexes: dict[str, PrefixIndex] = {}

    def add(self, replica: Replica) -> None:
        self.indexes[replica.name] = PrefixIndex(replica.blocks)

    def remove(self, replica: Replica) -> None:
        del self.indexes[replica.name]

    def choose(self, chain: Sequence[bytes], replicas: Sequence[Replica]) -> Route:
        most = min(one.work for one in replicas) + self.bound
        longest, chosen = -1, replicas[0]
        for one in replicas:
            if one.work > most:
                continue
            count = self.indexes[one.name].count_prefix(chain)
            if count > longest or (count == longest and one.work < chosen.work):
                longest, chosen = count, one
        self.indexes[chosen.name].use(chain)
        return Route(chosen, longest)


class RoundRobinPolicy:
    """Each in turn."""

    def __init__(self, options: RoutingOptions) -> None:
        self._last = -1

    def add(self, replica: Replica) -> None:
        pass

    def remove(self, replica: Replica) -> None:
        pass

    def choose(self, chain: Sequence[bytes], replicas: Sequence[Replica]) -> Route:
        later = (one for one in replicas if one.number > self._last)
        chosen = next(later, replicas[0])
        self._last = chosen.number
        return Route(chosen, 0)


class PowerOfTwoPolicy:
    """The less busy of two that are drawn; the one that was added first where they are equal."""

    def __init__(self, options: RoutingOptions) -> None:
        self._draw = random.Random(options.seed)

    def add(self, replica: Replica) -> None:
        pass

    def remove(self, replica: Replica) -> None:
        pass

    def choose(self, chain: Sequence[bytes], replicas: Sequence[Replica]) -> Route:
        drawn = self._draw.sample(replicas, min(2, len(replicas)))
        return Route(min(drawn, key=lambda one: (one.work, one.number)), 0)


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
