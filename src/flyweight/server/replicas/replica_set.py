"""Sends requests to replicas, and their answers back.

Invariant: a request runs on one replica at a time, and its router knows where.  Where that replica
is lost, a request of which nothing was sent yet begins again on another one, and one of which
something was sent ends with an error.  Runs on one event loop; knows no HTTP and no cluster's kind.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import msgspec

from flyweight.errors import EngineError
from flyweight.parallel.cluster import END, GONE, Cluster
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import make_policy
from flyweight.routing.router import Router
from flyweight.server import pipe
from flyweight.server.replicas.clocks import ClockedSubmit, measure_epoch

PATIENCE = 15.0  # seconds that a request waits for a replica, where others are being replaced
MOST_LOSSES = 2  # replicas that may end while they compute one request
DOWN = "engine_down"
BEGUN = "the replica that computed this request was lost after the answer had begun"
TWICE = "two replicas were lost while they computed this request"
NONE_LEFT = "no replica is ready; retry later"


class Outcome(Enum):
    """How a try to compute a request ended."""

    ENDED = "it was answered"
    GONE = "the replica takes no new requests"
    LOST = "the replica was lost"


@dataclass(slots=True, eq=False)
class Member:
    """A replica; `slot` is its number for people, the lowest that is free.  `open` replicas get new
    requests; `readers` read the streams of those that run.
    """

    name: str
    slot: int
    open: bool = True
    readers: set["asyncio.Task[Outcome]"] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request under way.  `begun`: something of its answer was passed on; `started`: it was said
    that it is computed.
    """

    submit: pipe.Submit
    chain: list[bytes]
    begun: bool = False
    started: bool = False
    name: str = ""
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class RoutingCounts:
    """Requests that began again on another replica, and that ended as theirs was lost; replicas
    that were lost.
    """

    retried: int = 0
    failed: int = 0
    lost: int = 0


class ReplicaSet:
    """The replicas of one model.  `deliver` gets the messages of the replica with a name;
    `on_lost` is called with one that was lost.
    """

    def __init__(
        self, cluster: Cluster, routing: str, deliver: Callable[[str, Any], None],
        on_lost: Callable[[Member], None],
    ) -> None:  # fmt: skip
        self.cluster, self.routing = cluster, routing
        self.deliver, self.on_lost = deliver, on_lost
        self.counts = RoutingCounts()
        self.members: dict[str, Member] = {}
        self.left: set[str] = set()  # names of members that are gone, or were refused
        self.runs: dict[str, RoutedRequest] = {}
        # by slot: requests that were sent there, and their tokens that were expected in its cache
        self.requests, self.cached = Counter[int](), Counter[int]()
        self._added = asyncio.Event()
        self._router: Router | None = None
        self._keys: RoutingKeys | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def open(self) -> list[Member]:
        """Replicas that get new requests."""
        return [one for one in self.members.values() if one.open]

    # --- replicas that come and go ---

    def add(self, name: str, facts: Mapping[str, Any]) -> Member:
        """One more, whose engine has these facts."""
        taken = {one.slot for one in self.members.values()}
        slot = next(n for n in range(len(taken) + 1) if n not in taken)
        member = self.members[name] = Member(name, slot)
        if self._router is None or self._keys is None:
            size = facts["block_size"]
            self._router = Router(make_policy(self.routing), size)
            self._keys = RoutingKeys("", secrets.token_bytes(16), size)
        self._router.add_replica(name, facts["blocks"])
        self._added.set()
        return member

    def retire(self, name: str) -> None:
        """Sends a replica no more requests; those that it has go on."""
        member = self.members.get(name)
        if member is not None and member.open:
            assert self._router is not None
            member.open = False
            self._router.remove_replica(name)

    def remove(self, name: str) -> Member | None:
        """A replica has gone: what it had to do begins again elsewhere, or ends."""
        self.retire(name)
        self.left.add(name)
        member = self.members.pop(name, None)
        if member is not None:
            for reader in member.readers:
                reader.cancel()
        return member

    def lose(self, name: str) -> None:
        """A replica does not answer any more: the cluster replaces it."""
        member = self.remove(name)
        if member is None:  # another of its requests has found out
            return
        self.counts.lost += 1
        self.start(self.cluster.drop(name))
        self.on_lost(member)

    def end_all(self) -> None:
        """Forgets all requests, as their client has ended them."""
        self.counts.failed += len(self.runs)
        for run in self.runs.values():
            if run.task is not None:
                run.task.cancel()
        self.runs.clear()

    # --- requests ---

    def submit(self, submit: pipe.Submit) -> None:
        run = self.runs[submit.id] = RoutedRequest(submit, self._make_chain(submit))
        run.task = self.start(self._serve(run))

    def abort(self, message: pipe.Abort) -> None:
        run = self.runs.get(message.id)
        if run is None or run.task is None:
            return
        if run.name:
            self.start(self.cluster.tell(run.name, pipe.encode_frame(message)))
        if message.index is None:
            run.task.cancel()

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Runs at the same time; an error of the cluster is found where a request needs it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _make_chain(self, submit: pipe.Submit) -> list[bytes]:
        """The keys of its prompt's blocks, where they decide."""
        if self._keys is None or self.routing != "prefix":
            return []
        tokens = memoryview(submit.tokens).cast("i").tolist()
        return self._keys.make_keys(tokens, submit.salt, submit.adapter)

    async def _serve(self, run: RoutedRequest) -> None:
        id, losses = run.submit.id, 0
        try:
            while True:
                member = self._route(run)
                if member is None:
                    if await self._wait_for_replica():
                        continue
                    self._refuse(run, NONE_LEFT)
                    return
                outcome = await self._try(run, member)
                if outcome is Outcome.ENDED:
                    return
                if outcome is Outcome.GONE:
                    self.retire(member.name)
                    continue
                self.lose(member.name)
                if id not in self.runs:  # it was the last replica
                    return
                losses += 1
                if run.begun or losses == MOST_LOSSES:
                    self._refuse(run, BEGUN if run.begun else TWICE)
                    return
                self.counts.retried += 1
        finally:
            self.runs.pop(id, None)

    async def _wait_for_replica(self) -> bool:
        """Whether one more is there in time: the cluster may retire a replica a moment before it is
        seen that the next one is ready.
        """
        self._added.clear()
        try:
            await asyncio.wait_for(self._added.wait(), PATIENCE)
        except TimeoutError:
            return False
        return True

    def _route(self, run: RoutedRequest) -> Member | None:
        if self._router is None:
            return None
        tokens = len(run.submit.tokens) // 4
        route = self._router.begin(run.submit.id, run.chain, tokens)
        if route is None:
            return None
        member = self.members[route.replica.name]
        run.name = member.name
        self.requests[member.slot] += 1
        self.cached[member.slot] += route.cached * self._router.block_size
        return member

    async def _try(self, run: RoutedRequest, member: Member) -> Outcome:
        """One replica's attempt at a request."""
        reader = asyncio.get_running_loop().create_task(self._read(run, member.name))
        member.readers.add(reader)
        try:
            await asyncio.wait([reader])
        finally:
            member.readers.discard(reader)
            reader.cancel()
            assert self._router is not None
            self._router.finish(run.submit.id)
        if reader.cancelled():  # the replica was removed meanwhile
            return Outcome.LOST
        return reader.result()

    async def _read(self, run: RoutedRequest, name: str) -> Outcome:
        frame = msgspec.msgpack.encode(ClockedSubmit(measure_epoch(), run.submit))
        frames = pipe.PipeFrames(pipe.ToFront)
        stream = cast(Any, self.cluster.compute(name, frame))
        with suppress(Exception):  # whatever it is, the replica cannot be relied on
            async with aclosing(stream):
                async for data in stream:
                    if data == END:
                        return Outcome.ENDED
                    if data == GONE:
                        return Outcome.GONE
                    for _, message in frames.push(data):
                        self._pass_on(run, name, message)
        return Outcome.LOST

    def _pass_on(self, run: RoutedRequest, name: str, message: Any) -> None:
        if isinstance(message, pipe.StepReport):
            if run.started:
                message.started = []
            run.started = run.started or bool(message.started)
            run.begun = run.begun or bool(message.news)
        self.deliver(name, message)

    def _refuse(self, run: RoutedRequest, words: str) -> None:
        self.counts.failed += 1
        error = EngineError(words, code=DOWN)
        self.deliver(run.name, pipe.RequestRefused.of(run.submit.id, error))
