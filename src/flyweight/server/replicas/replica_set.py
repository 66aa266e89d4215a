"""Sends requests to replicas, and their answers back.

Invariant: a request runs on one replica at a time, and its router knows where.  Where that replica
is lost, a request of which nothing was sent yet begins again on another one, and one of which
something was sent ends with an error.  Runs on one event loop; knows no HTTP and no cluster's kind.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, cast

import msgspec

from flyweight.errors import EngineError
from flyweight.parallel.cluster import END, GONE, Cluster
from flyweight.parallel.cluster_errors import CallError
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import make_policy
from flyweight.routing.router import Router
from flyweight.server import pipe
from flyweight.server.replicas.clocks import ClockedSubmit, measure_epoch
from flyweight.server.replicas.members import Member, Outcome, RoutedRequest, RoutingCounts

PATIENCE = 15.0  # seconds that a request waits for a replica, where others are being replaced
AGAIN, LATEST = 1.0, 30.0  # seconds that a replica which refused a request gets none, doubled
MOST_LOSSES = 2  # replicas that may end while they compute one request
DOWN = "engine_down"
BEGUN = "the replica that computed this request was lost after the answer had begun"
TWICE = "two replicas were lost while they computed this request"
NONE_LEFT = "no replica is ready; retry later"
OURS = "the server failed to pass on this answer"
CALL = "the replica failed to compute this request"


class ReplicaSet:
    """The replicas of one model.  `deliver` gets the messages of the replica with a name;
    `on_lost` is called with one that was lost, `on_error` with an error of `deliver`.
    """

    def __init__(
        self, cluster: Cluster, routing: str, deliver: Callable[[str, Any], None],
        on_lost: Callable[[Member], None],
    ) -> None:  # fmt: skip
        self.cluster, self.routing = cluster, routing
        self.deliver, self.on_lost = deliver, on_lost
        self.on_error: Callable[[Exception], None] = lambda error: None
        self.counts = RoutingCounts()
        self.members: dict[str, Member] = {}
        self.left: set[str] = set()  # names of replicas that were lost, or are not taken
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
        member = Member(name, slot, facts["blocks"])
        if self._router is None or self._keys is None:
            size = facts["block_size"]
            self._router = Router(make_policy(self.routing), size)
            self._keys = RoutingKeys("", secrets.token_bytes(16), size)
        self._router.add_replica(name, member.blocks)
        self.members[name] = member
        self._added.set()
        return member

    def pause(self, member: Member) -> None:
        """A replica refused a request: it drains, or the cluster does not know it yet.  What it has
        goes on, so that its work and its cache still count where it gets requests again.
        """
        if member.open:
            assert self._router is not None
            member.open = False
            self._router.pause_replica(member.name)
            member.again = time.monotonic() + min(LATEST, AGAIN * 2**member.refusals)
            member.refusals += 1

    def resume(self, name: str) -> None:
        """A replica that refused a request still reports: it gets another one after a while."""
        member = self.members[name]
        if not member.open and time.monotonic() >= member.again:
            assert self._router is not None
            member.open = True
            self._router.resume_replica(name)
            self._added.set()

    def forget_caches(self) -> None:
        """The prefix caches of all replicas were emptied."""
        if self._router is not None:
            self._router.forget_caches()

    def remove(self, name: str) -> Member | None:
        """A replica has gone: what it had to do begins again elsewhere, or ends."""
        member = self.members.pop(name, None)
        if member is not None:
            assert self._router is not None
            member.open = False
            self._router.remove_replica(name)
            for reader in member.readers:
                reader.cancel()
        return member

    def lose(self, name: str) -> None:
        """A replica does not answer any more: the cluster replaces it."""
        member = self.remove(name)
        if member is None:  # another of its requests has found out
            return
        self.left.add(name)
        self.counts.lost += 1
        self.start(self._drop(name))
        self.on_lost(member)

    def lose_stuck(self, seconds: float) -> None:
        """Replicas whose requests make no progress, for so long: they may report all the same."""
        since = time.monotonic() - seconds
        for member in list(self.members.values()):
            if member.readers and member.progressed < since:
                self.lose(member.name)

    async def _drop(self, name: str) -> None:
        try:
            await self.cluster.drop(name)
        except Exception:  # of the cluster's own kinds too
            self.left.discard(name)  # it runs on, and is taken again where it reports

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
        try:
            await self._find_answer(run)
        except Exception as error:  # of our own side, or of this call: the replica goes on
            self.on_error(error)
            self._refuse(run, CALL if isinstance(error, CallError) else OURS, "engine_error")
        finally:
            self.runs.pop(run.submit.id, None)

    async def _find_answer(self, run: RoutedRequest) -> None:
        """Tries replicas until one of them has answered a request, or the request is refused."""
        losses, until = 0, 0.0
        while True:
            member = self._route(run)
            if member is None:
                until = until or time.monotonic() + PATIENCE
                if await self._wait_for_replica(until - time.monotonic()):
                    continue
                return self._refuse(run, NONE_LEFT)
            outcome = await self._try(run, member)
            if outcome is Outcome.ENDED:
                return None
            if outcome is Outcome.GONE:
                self.pause(member)
                continue
            if self.members.get(member.name) is member:
                self.lose(member.name)
            if run.submit.id not in self.runs:  # it was the last replica
                return None
            losses += 1
            if run.begun or losses == MOST_LOSSES:
                return self._refuse(run, BEGUN if run.begun else TWICE)
            self.counts.retried += 1
            until = 0.0

    async def _wait_for_replica(self, seconds: float) -> bool:
        """Whether one more is there in time: the cluster may retire a replica a moment before it is
        seen that the next one is ready.
        """
        self._added.clear()
        try:
            await asyncio.wait_for(self._added.wait(), seconds)
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
        reader = asyncio.get_running_loop().create_task(self._read(run, member))
        if not member.readers:
            member.progressed = time.monotonic()
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

    async def _read(self, run: RoutedRequest, member: Member) -> Outcome:
        frame = msgspec.msgpack.encode(ClockedSubmit(measure_epoch(), run.submit))
        frames = pipe.PipeFrames(pipe.ToFront)
        stream = cast(AsyncGenerator[bytes], self.cluster.compute(member.name, frame))
        try:
            while not isinstance(found := await _receive(stream, frames), Outcome):
                member.refusals, member.progressed = 0, time.monotonic()
                for message in found:
                    self._pass_on(run, member.name, message)
            return found
        finally:
            with suppress(Exception):  # nothing more is read from it
                await stream.aclose()

    def _pass_on(self, run: RoutedRequest, name: str, message: Any) -> None:
        if isinstance(message, pipe.StepReport):
            if run.started:
                message.started = []
            run.started = run.started or bool(message.started)
            run.begun = run.begun or bool(message.news)
        self.deliver(name, message)

    def _refuse(self, run: RoutedRequest, words: str, code: str = DOWN) -> None:
        self.counts.failed += 1
        error = EngineError(words, code=code)
        self.deliver(run.name, pipe.RequestRefused.of(run.submit.id, error))


async def _receive(stream: AsyncGenerator[bytes], frames: pipe.PipeFrames) -> list[Any] | Outcome:
    """The next messages of a replica, or how its stream ended."""
    try:
        data = await anext(stream)
        if data == END:
            return Outcome.ENDED
        return Outcome.GONE if data == GONE else [one for _, one in frames.push(data)]
    except CallError:
        raise
    except Exception:  # whatever it is, the replica cannot be relied on
        return Outcome.LOST
