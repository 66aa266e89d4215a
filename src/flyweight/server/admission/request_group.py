"""The requests of one HTTP request: submitted, read and ended together.

Invariant: whatever happens to the client, its requests are ended, and its reservation is returned
once.  Knows no API.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from flyweight.errors import FlyweightError
from flyweight.requests.attempts import Attempts
from flyweight.requests.collector import Collector, TextPiece, VectorCollector
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.batching import RequestBatcher
from flyweight.server.admission.deadlines import TimedRequest
from flyweight.server.admission.queue import AdmissionQueue, Reservation
from flyweight.server.coalescing import make_key
from flyweight.server.engine_client import EngineStream
from flyweight.server.request_model import count_sequences
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError, make_timeout_error, to_http_error


class _Unsent(NamedTuple):
    """A request before it is submitted; `choices` sequences of it wait in the queue, with `tokens`
    of its prompt.
    """

    collector: Collector | VectorCollector
    key: bytes | None
    choices: int
    tokens: int


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """What admission decided of an HTTP request, which `arrived` then and waited `loading` seconds
    for its model: its prompts, its place in the queue, and the batch that it waits for, if it does.
    `timed` are its predicted times, `notes` what is reported with the measured ones.
    """

    prompts: Sequence[PreparedPrompt]
    reservation: Reservation
    arrived: float
    loading: float = 0.0
    batcher: RequestBatcher | None = None
    timed: TimedRequest | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


class RequestGroup:
    """The requests of one HTTP request.  They run once this exists, or with the batch that they
    wait for, and it is in `groups`; `close` ends those that still run.  `on_start` is called when
    one of them is computed for the first time.
    """

    def __init__(
        self,
        model: ServedModel,
        queue: AdmissionQueue,
        groups: set["RequestGroup"],
        admitted: AdmittedRequest,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.queue, self.groups = model, queue, groups
        self.reservation, self.timed = admitted.reservation, admitted.timed
        self.notes = dict(admitted.notes)
        self.collectors: list[Collector | VectorCollector] = []
        self.on_start = on_start
        self._changed = asyncio.Event()
        self._streams: list[EngineStream] = []
        self._unsent: list[_Unsent] = []
        self._withdraw: Callable[[], None] = lambda: None
        self._attempts: list[Attempts] = []  # at answers that are checked
        self._retries: list[EngineStream] = []
        self._error: HttpError | None = None
        self._closed = False
        self._ahead = 0  # tokens that arrived and were not read
        self._choices = sum(count_sequences(one) for one in admitted.prompts)
        seconds = model.settings.request_timeout
        gone = time.monotonic() - admitted.arrived
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(max(0.0, seconds - gone), self._time_out)
        waiting = max(0.0, model.settings.queue_timeout - (gone - admitted.loading))
        self._waiting = loop.call_later(waiting, self._leave_queue_late)
        groups.add(self)
        model.hold()
        try:
            self._unsent = [self._make(one) for one in admitted.prompts]
            if admitted.batcher is None or self._would_join():
                self._submit()
            else:
                client, count = model.client, len(admitted.prompts)
                self._withdraw = admitted.batcher.hold(client, count, self._submit_held)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RequestGroup":
        return self

    def __exit__(self, *gone: object) -> None:
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._withdraw()
        self.groups.discard(self)
        self.model.release()
        self._late.cancel()
        self._waiting.cancel()
        for stream in self._streams:
            self.model.client.leave(stream)
            self.model.observer.observe_end(stream)
        if self.timed is not None:
            self.timed.end(self._streams)
        for stream in self._retries:
            self.model.client.leave(stream)
        self.queue.leave(self.reservation, self.reservation.requests, self.reservation.tokens)

    def give_up(self, error: HttpError) -> None:
        """Ends the response with an error: an error event where it is streamed."""
        self._error = error
        self._changed.set()

    def limit_buffer(self) -> None:
        """Ends the group if its client falls too far behind.  Without this, a client that does not
        read would let a stream fill the memory.
        """
        for stream in self._streams:
            if stream.collector.request.beam is None and not self._attempts:  # all at their end
                stream.on_tokens = self._count_unread

    async def read_pieces(self) -> AsyncGenerator[list[tuple[int, TextPiece]]]:
        """New pieces, with the number of their prompt, until all are there.  Raises the error that
        ended a request.  Answers that are checked come at once, when all are final.
        """
        if self._attempts:
            await self.wait_for_all()
        live = list(enumerate(self._streams))
        while live:
            if not self._attempts:
                await self._wait_for_change()
            self._ahead = 0
            found: list[tuple[int, TextPiece]] = []
            for i, stream in live:
                if stream.error is not None:
                    raise stream.error
                collector = stream.collector
                if isinstance(collector, Collector):
                    found += [(i, piece) for piece in collector.take_pieces()]
            # before they are written, which others' turns interrupt: more may come meanwhile
            live = [(i, stream) for i, stream in live if not stream.over]
            if found:
                for _, piece in found:
                    raise_if(piece.error)
                yield found

    async def wait_for_all(self) -> list[Collector | VectorCollector]:
        """Waits until all requests have ended and all checked answers are final; returns the
        collectors.
        """
        while self._unsent:
            await self._wait_for_change()
        if self._error is not None:  # also where nothing could be submitted
            raise self._error
        await self._finish(self._streams)
        await self._retry()
        for collector in self.collectors:
            if isinstance(collector, Collector):
                for choice in collector.choices:  # their text is made later, and aside
                    raise_if(choice.error)
        return self.collectors

    async def _finish(self, streams: Sequence[EngineStream]) -> None:
        """Waits for the end of requests.  Raises what ended one."""
        while not all(stream.over for stream in streams):
            await self._wait_for_change()
        for stream in streams:
            if stream.error is not None:
                raise stream.error

    async def _retry(self) -> None:
        """Checks answers, and generates those that are not valid again."""
        open_attempts = self._attempts
        while open_attempts:
            begun: dict[Attempts, EngineStream] = {}
            for one in open_attempts:
                if collector := one.retry(await self._validate(one), self.model.preparer.make_id()):
                    begun[one] = self.model.client.submit(collector, self._changed)
            self._retries += begun.values()
            await self._finish(list(begun.values()))
            for one, stream in begun.items():
                one.take(cast(Collector, stream.collector))
            open_attempts = list(begun)

    async def _validate(self, attempts: Attempts) -> dict[int, bool | None]:
        validate = self.model.validator.validate
        texts = attempts.list_texts()
        return {i: await validate(attempts.outputs, text) for i, text in texts.items()}

    async def _wait_for_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    def _make(self, prompt: PreparedPrompt) -> _Unsent:
        """A request that was not submitted yet."""
        preparer = self.model.preparer
        make = preparer.make_collector if prompt.pooling is None else preparer.make_vector
        collector = make(prompt, preparer.make_id())
        if isinstance(collector, Collector):
            collector.interval = self.model.settings.stream_interval
            collector.notes = self.notes
            if attempts := preparer.attempts(prompt, collector):
                self._attempts.append(attempts)
        shared = self.model.settings.coalesce_requests and not self._attempts
        key = make_key(collector.request) if shared else None
        self.collectors.append(collector)
        return _Unsent(collector, key, count_sequences(prompt), len(prompt.tokens))

    def _would_join(self) -> bool:
        """Whether others compute all of this already."""
        return all(self.model.client.computes(one.key) for one in self._unsent)

    def _submit(self) -> None:
        """Submits what was not yet.  Raises `EngineDown`."""
        unsent, self._unsent = self._unsent, []
        for one in unsent:
            stream = self.model.client.submit(one.collector, self._changed, one.key)
            stream.on_start = partial(self._note_start, one.choices, one.tokens)
            if stream.running:
                stream.on_start()
            self._streams.append(stream)

    def _submit_held(self) -> None:
        """The same where an error ends the response."""
        try:
            self._submit()
        except Exception as error:  # those of its batch are submitted all the same
            self._error = to_http_error(error)
        self._changed.set()

    def _note_start(self, choices: int, tokens: int) -> None:
        self.queue.leave(self.reservation, choices, tokens)
        self.on_start()

    def _time_out(self) -> None:
        self._error = make_timeout_error(self.model.settings.request_timeout)
        self._changed.set()

    def _leave_queue_late(self) -> None:
        """Refuses the request if it was not scheduled in time, so that the client can retry."""
        if not any(stream.running or stream.over for stream in self._streams):
            self._error = self.queue.make_timeout_error()
            self._changed.set()

    def _count_unread(self, tokens: int) -> None:
        """Counts tokens that arrived and were not read yet."""
        self._ahead += tokens
        most = self.model.settings.max_stream_buffer_tokens
        if self._ahead <= most * self._choices or self._closed:
            return
        if all(stream.over for stream in self._streams):
            return
        self.close()
        self._error = HttpError(
            408,
            f"the stream was ended: the client was more than {most} tokens per choice behind; "
            "read faster, or request fewer tokens (--max-stream-buffer-tokens)",
            code="slow_client",
        )
        self._changed.set()


def raise_if(error: FlyweightError | None) -> None:
    """Raises what kept the engine from finishing a choice."""
    if error is not None:
        raise error
