"""Several engine processes as the API server sees them: in the place of one `EngineHost`.

Invariant: its client sees one engine, which is ready while a replica is, and whose counters never
fall.  A replica of another version, or whose engine or weights differ, gets no request.  Serves one
model.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

from flyweight.errors import ConfigError, EngineError, FlyweightError
from flyweight.parallel.cluster import GONE, Cluster, ReplicaPlan
from flyweight.parallel.cluster_errors import CallError, describe_error
from flyweight.server import pipe
from flyweight.server.engine_host import EngineListener
from flyweight.server.replicas.gauges import ReplicaGauges
from flyweight.server.replicas.members import Member
from flyweight.server.replicas.replica_set import ReplicaSet
from flyweight.server.replicas.reports import (
    WEIGHTS,
    ReplicaReport,
    decode_report,
    encode_setup,
    find_difference,
)

EVERY = 0.5  # seconds between two looks at the replicas
PATIENCE = 30.0  # seconds without an answer of the cluster after which the server gives up
LONGEST = 300.0  # seconds that a start waits for replicas which do not report
ENDED = "a replica ended before it was ready; Ray's log on its machine may say why"
LATE = 30.0  # seconds without a report after which one that loads has ended, not lacked time
ANSWER = 10.0  # seconds that replicas have to answer a question


class ReplicaHost:
    """See `EngineHost`, whose attributes it has.  `set` are the replicas."""

    def __init__(
        self, cluster: Cluster, plan: ReplicaPlan, routing: str, on_failure: Callable[[str], None]
    ) -> None:
        self.cluster, self.plan, self.on_failure = cluster, plan, on_failure
        self.on_event: Callable[..., None] = lambda name, **facts: None
        self.on_given_up: Callable[[int, FlyweightError], Awaitable[None]] | None = None
        self.clients: dict[int, EngineListener] = {}
        self.restarts_lost, self.progressed = False, 0.0
        self.set = ReplicaSet(cluster, routing, self._deliver, self._note_lost)
        self.set.on_error = self._note_error
        self.gauges = ReplicaGauges()
        self.facts: Mapping[str, Any] = {}  # of the first replica that was ready
        self.generation = 0  # starts of the replicas; in each they may have other weights
        self._weights: dict[int, Mapping[str, Any]] = {}  # `WEIGHTS` of each generation
        self.connected = False
        self._told: set[str] = set()  # open replicas that the client knows of
        self._down = False  # no replica gets requests since one was lost, and others still drain
        self.unused = 0  # replicas that report and get no requests: they differ, or are lost
        self._starting = dict[str, float]()  # when replicas that are not ready reported last
        self._enough = inf  # when enough replicas reported last, or a load began
        self._shown = 0  # messages of loading that were passed on
        self._watching: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # held while replicas are started or stopped

    @property
    def restarts(self) -> int:
        return self.set.counts.lost

    @property
    def restarting(self) -> bool:
        """Whether no replica is ready."""
        return not self.set.open

    @property
    def loading(self) -> bool:
        """Whether the client waits for enough replicas; until then one that fails ends the wait."""
        return not self.restarts_lost or not self.facts

    @property
    def needed(self) -> int:
        """Replicas that are enough to begin."""
        return 1 if self.restarts_lost else self.plan.least

    @property
    def client(self) -> EngineListener:
        (found,) = self.clients.values()
        return found

    def add(self, client: EngineListener) -> int:
        assert not self.clients, "replicas serve one model"
        self.clients[0] = client
        return 0

    def remove(self, number: int) -> None:
        del self.clients[number]

    def begin(self, *clients: EngineListener) -> None:
        """The engines to load first; replicas start with the event loop."""

    async def open(self) -> None:
        """Starts the replicas.  Raises `ConfigError`."""
        async with self._changing:
            await self._start_replicas(self.client.begin_loading())
        self.connected = True
        self._watching = self.set.start(self._watch())

    def send(self, number: int, message: pipe.ToEngine) -> None:
        if isinstance(message, pipe.Submit):
            self.set.submit(message)
        elif isinstance(message, pipe.Abort):
            self.set.abort(message)
        elif isinstance(message, pipe.EngineQuestion):
            self.set.start(self._ask(message))
        elif isinstance(message, pipe.EngineSetup):
            self.set.start(self._load(message))
        else:
            self.set.start(self._unload())

    @contextmanager
    def send_together(self) -> Iterator[None]:
        """Requests go to replicas one by one."""
        yield

    def kill(self) -> None:
        """Ends replicas that have requests: none of them makes progress."""
        for member in list(self.set.members.values()):
            if member.readers:
                self.set.lose(member.name)

    async def close(self) -> None:
        self.connected = False
        await self.set.close()
        await self.cluster.close()

    async def replace(self, weights: Mapping[str, Any]) -> None:
        """Starts the replicas again, a few at a time, so that they read their files again; those
        that end finish their requests first.  `weights` are facts of the files: a new replica with
        other ones gets no request.  Raises `ConfigError` or `EngineError`.
        """
        async with self._changing:
            if not self.client.wanted:
                raise ConfigError("the model was unloaded")
            self._weights[self.generation + 1] = weights
            await self._start_replicas(self.client.begin_loading())

    async def _start_replicas(self, setup: pipe.EngineSetup) -> None:
        """Those of the generation before are replaced.  Raises `ConfigError`."""
        self.generation += 1
        self._starting = {}
        await self.cluster.start(encode_setup(self.generation, setup))

    # --- replicas that come and go ---

    async def _watch(self) -> None:
        """Looks at what the replicas report, until the cluster is gone."""
        seen = self._enough = time.monotonic()
        while True:
            try:
                reports = await self.cluster.list()
            except Exception as error:  # of the cluster's own kinds too
                if time.monotonic() - seen > PATIENCE:
                    self._give_up(error)
                    return
            else:
                seen = time.monotonic()
                try:
                    self.update({name: decode_report(one) for name, one in reports.items()})
                except Exception as error:  # of our own side: the next look may succeed
                    self._note_error(error)
            await asyncio.sleep(EVERY)

    def _give_up(self, error: Exception) -> None:
        problem = f"the cluster of the replicas does not answer: {describe_error(error)}"
        if self.restarts_lost:
            self.on_failure(problem)
        else:  # which ends the start
            self.client.take(pipe.Failed(problem))

    def update(self, reports: Mapping[str, ReplicaReport]) -> None:
        """What all replicas reported last."""
        for name in [one for one in self.set.members if one not in reports]:
            self._remove(name)
        self.set.lose_stuck(2 * self.plan.patience)
        for name, report in reports.items():
            try:
                self._take_report(name, report)
            except Exception as error:  # it is not what this version reports
                words = f"{type(error).__name__}: {error}"
                self._exclude(name, f"a replica's report is not valid: {words}")
        if self._down and not self.set.open:
            self._end_if_idle()
        if self._told != {one.name for one in self.set.open}:
            self._describe()
        self.unused = len(reports.keys() & self.set.left)
        self._check_starting(reports)
        self._check_start(len(reports.keys() - self.set.left))
        for report in list(reports.values())[:1]:
            self._show_loading(report)

    def _take_report(self, name: str, report: ReplicaReport) -> None:
        member = self.set.members.get(name)
        if member is None:
            if name not in self.set.left:
                self._consider(name, report)
        elif report.failed:
            self._exclude(name, report.failed)
        else:
            if report.gauges is not None:
                self.gauges.take(name, report.gauges)
            self.set.resume(name)

    def _consider(self, name: str, report: ReplicaReport) -> None:
        """A replica that is no member yet."""
        weights = self._weights.get(report.generation, {})
        problem = find_difference(report, self.facts, weights)
        if problem:
            self._exclude(name, problem)
        elif report.facts is not None:
            member = self.set.add(name, report.facts)
            self.facts = self.facts or report.facts
            found = {name: report.facts[name] for name in WEIGHTS}
            self._weights.setdefault(report.generation, found)
            self.on_event("replica_ready", replica=member.slot, replicas=len(self.set.open))

    def _exclude(self, name: str, problem: str) -> None:
        """A replica that cannot serve with the others."""
        if self.loading:
            self.client.take(pipe.Failed(problem))
        if name in self.set.members:
            self.set.lose(name)
        elif name not in self.set.left:
            self.set.left.add(name)
            self.on_event("replica_failed", problem=problem)

    def _remove(self, name: str) -> None:
        """A replica that reports nothing any more; one that is idle may report again."""
        member = self.set.members[name]
        if member.open and member.readers:
            self.set.lose(name)
            return
        self.set.remove(name)
        self.gauges.remove(name)
        self.on_event("replica_ended", replica=member.slot, replicas=len(self.set.open))

    def _note_lost(self, member: Member) -> None:
        self.gauges.remove(member.name)
        left = len(self.set.open)
        self.on_event("replica_lost", replica=member.slot, replicas=left)
        if not left:
            self._down = True
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        """The last replica was lost; those that drain finish what they have first."""
        if any(one.readers for one in self.set.members.values()):
            return
        self._down, self._told = False, set()
        self.client.handle_lost()
        self.set.end_all()

    def _note_error(self, error: Exception) -> None:
        """The text of an error of our own may hold a prompt."""
        name = str(error) if isinstance(error, CallError) else type(error).__name__
        self.on_event("replicas_failed", problem=name)

    def _describe(self) -> None:
        """Lets the client know how many there are, once there are enough to begin."""
        names = {one.name for one in self.set.open}
        if names:
            self._down = False
        if len(names) >= max(1, self.needed):
            self.client.take(pipe.Ready({**self.facts, "replicas": len(names)}))
        self._told = names

    def _check_start(self, reporting: int) -> None:
        """Ends a start for which the cluster lacks machines."""
        now = time.monotonic()
        if not self.loading or reporting >= self.needed:
            self._enough = now
        elif now - self._enough > LONGEST:
            self._enough = inf  # it is reported once
            self.client.take(
                pipe.Failed(
                    f"{reporting} of {self.needed} replicas are up after {LONGEST:g} seconds: the "
                    "cluster has no room for the others, or they do not start; add machines, or "
                    "request fewer replicas"
                )
            )

    def _check_starting(self, reports: Mapping[str, ReplicaReport]) -> None:
        """Ends a start where a replica has gone that was not ready: another would end as well."""
        now = time.monotonic()
        for name, one in reports.items():
            if one.facts is not None or name in self.set.left:
                self._starting.pop(name, None)
            elif one.generation == self.generation:
                self._starting[name] = now
        if self.loading and any(now - seen > LATE for seen in self._starting.values()):
            self._starting = {}  # it is reported once
            self.client.take(pipe.Failed(ENDED))

    def _show_loading(self, report: ReplicaReport) -> None:
        """Passes on what the first replica says while it loads."""
        for message in report.loading[self._shown :]:
            self.client.take(message)
        self._shown = len(report.loading)

    # --- messages ---

    def _deliver(self, name: str, message: Any) -> None:
        if isinstance(message, pipe.StepReport):
            message.gauges = self.gauges.take(name, message.gauges)
        for client in self.clients.values():
            client.take(message)

    async def _ask(self, question: pipe.EngineQuestion) -> None:
        """Sends a question to all replicas; the answer has theirs, by their numbers, and lists
        those that did not answer in time.
        """
        members = list(self.set.members.values()) if question.topic != "ping" else []
        found, silent = dict[str, Any](), list[int]()
        frame = pipe.encode_frame(question)
        asked = {self.set.start(self.cluster.tell(one.name, frame)): one for one in members}
        if asked:
            await asyncio.wait(asked, timeout=ANSWER)
        for task, member in asked.items():
            try:
                found[str(member.slot)] = read_answer(task)
            except Exception as error:  # the others' answers count
                silent.append(member.slot)
                self.on_event("replica_silent", replica=member.slot, problem=error)
        value: dict[str, Any] = {"replicas": found} if members else {}
        if question.topic == "reset":
            self.set.forget_caches()
            value = {"freed": sum(one.get("freed", 0) for one in found.values())}
        if silent:
            value["silent"] = silent
        self.client.take(pipe.EngineAnswer(question.number, value))

    async def _load(self, setup: pipe.EngineSetup) -> None:
        async with self._changing:
            self.facts, self._told, self._enough = {}, set(), time.monotonic()
            try:
                await self._start_replicas(setup)
            except Exception as error:  # whatever it is, nothing will report
                self.client.take(pipe.Failed(describe_error(error)))

    async def _unload(self) -> None:
        async with self._changing:
            for name in list(self.set.members):
                self.set.remove(name)
                self.set.left.add(name)  # its last report is still there
                self.gauges.remove(name)
            self.set.left |= self._starting.keys()
            try:
                await self.cluster.stop()
            except Exception as error:  # the client waits all the same
                self.on_event("replicas_failed", problem=describe_error(error))
            self.client.take(pipe.Unloaded())


def read_answer(asked: "asyncio.Task[bytes]") -> Any:
    """What a replica has answered.  Raises an error where it has not."""
    if not asked.done():
        asked.cancel()
        raise EngineError(f"no answer in {ANSWER:g} seconds")
    data = b"" if asked.cancelled() else asked.result()
    if len(data) <= len(GONE):
        raise EngineError("it takes no more questions")
    ((_, answer),) = pipe.PipeFrames(pipe.ToFront).push(data)
    return answer.value
