"""Sends requests to replicas, and counts the work that is outstanding there.

Invariant: the work of a replica is that of the requests which began there and have not finished; a
replica that was removed or is paused is not chosen.  One thread calls it.  Standard library only;
knows no transport.
"""

from collections.abc import Sequence
from typing import NamedTuple

from flyweight.errors import ConfigError
from flyweight.routing.policies import RoutingPolicy
from flyweight.routing.replica import Replica, Route


class OutstandingRequest(NamedTuple):
    """Where a request is, and how many tokens of its prompt are to be computed."""

    replica: Replica
    tokens: int


class Router:
    """Replicas of one model, whose prefix caches have blocks of `block_size` tokens."""

    def __init__(self, policy: RoutingPolicy, block_size: int) -> None:
        self.policy, self.block_size = policy, block_size
        self.replicas: list[Replica] = []
        self._requests: dict[str, OutstandingRequest] = {}
        self._added = self._begun = 0

    def add_replica(self, name: str, blocks: int) -> Replica:
        """One more, whose cache of so many blocks is empty.  Raises `ConfigError`."""
        if any(one.name == name for one in self.replicas):
            raise ConfigError("is the name of a replica already", "replica", value=name)
        replica = Replica(name, blocks, self._added)
        self._added += 1
        self.replicas.append(replica)
        self.policy.add(replica)
        return replica

    def remove_replica(self, name: str) -> list[str]:
        """Returns the ids of the requests that had not finished there; they are forgotten.  Raises
        `ConfigError`.
        """
        replica = self._find(name)
        self.replicas.remove(replica)
        self.policy.remove(replica)
        lost = [id for id, one in self._requests.items() if one.replica is replica]
        for id in lost:
            del self._requests[id]
        return lost

    def pause_replica(self, name: str) -> None:
        """A replica is not chosen for a while; its requests go on, and its cache is kept.  Raises
        `ConfigError`.
        """
        self._find(name).paused = True

    def resume_replica(self, name: str) -> None:
        """It may be chosen again.  Raises `ConfigError`."""
        self._find(name).paused = False

    def forget_caches(self) -> None:
        """The caches of all replicas were emptied; what they have to do goes on."""
        for replica in self.replicas:
            self.policy.remove(replica)
            self.policy.add(replica)

    def _find(self, name: str) -> Replica:
        replica = next((one for one in self.replicas if one.name == name), None)
        if replica is None:
            known = ", ".join(one.name for one in self.replicas) or "none"
            raise ConfigError("is no replica", "replica", value=name, allowed=known)
        return replica

    def begin(self, id: str, chain: Sequence[bytes], tokens: int) -> Route | None:
        """Chooses a replica for a prompt of so many tokens, whose full blocks have these keys, and
        counts its work there.  None: there is no replica, or all are paused.
        """
        assert id not in self._requests, "a request that has not finished"
        free = [one for one in self.replicas if not one.paused]
        if not free:
            return None
        route = self.policy.choose(chain, free)
        left = max(0, tokens - route.cached * self.block_size)
        self._requests[id] = OutstandingRequest(route.replica, left)
        route.replica.chosen = self._begun
        self._begun += 1
        route.replica.requests += 1
        route.replica.tokens += left
        return route

    def finish(self, id: str) -> None:
        """A request has ended, in whatever way.  One that was lost with its replica is ignored."""
        found = self._requests.pop(id, None)
        if found is not None:
            found.replica.requests -= 1
            found.replica.tokens -= found.tokens
