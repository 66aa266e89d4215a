"""The engine for asyncio: many streams at once, over one background thread that steps it.

Invariant: the engine is touched by its thread alone; every stream ends with its last output or one
exception, and a stream that is left ends its request.  Nothing piles up: at most `max_requests` are
in the engine, and of a stream that is read slowly only the newest output is kept, its text whole.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Self, Unpack

from flyweight.arguments.keywords import EngineArgs, EngineOptions
from flyweight.describe import LoadListener
from flyweight.errors import FlyweightError, RankLost, RequestError
from flyweight.inputs import LoRARequest
from flyweight.llm import LLM
from flyweight.outputs import EmbeddingRequestOutput, RequestOutput
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.requests.collector import Collector, VectorCollector
from flyweight.requests.pretrained import PreTrainedTokenizer
from flyweight.requests.prompts import ContextFactory, Prompt
from flyweight.types import Event, Request, SamplingParams
from flyweight.validation.ranges import whole


class RequestStream:
    """One request between the two threads: the engine's feeds, asyncio's reads."""

    def __init__(self, collector: Collector | VectorCollector) -> None:
        self.collector = collector
        self.error: BaseException | None = None
        self.over = False  # nothing more will come
        self._lock = threading.Lock()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def feed(self, events: Sequence[Event]) -> list[int]:
        """A step's events, on the engine's thread; the choices that a stop string ended."""
        with self._lock:
            stopped = [event.index for event in events if self.collector.feed(event)]
            self.over = self.collector.finished
        if self.over or self.collector.readable:
            self._wake()
        return stopped

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.error, self.over = error, True
        self._wake()

    async def next(self) -> RequestOutput | EmbeddingRequestOutput:
        """What is new since the last time; waits for it."""
        await self._changed.wait()
        with self._lock:
            self._changed.clear()
            if self.error is not None:
                raise self.error
            return self.collector.output()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the reader's loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)


class AsyncLLM:
    """An `LLM` (`model` and keywords are its own) whose answers are awaited.

    The thread starts with the first request and ends with `close`; use `async with`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        max_requests: int = 256,
        notify: LoadListener | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        max_requests = whole("max_requests", max_requests, 1, None)
        self.llm = LLM(model, notify=notify, **options)
        self._free = asyncio.Semaphore(max_requests)
        self._streams: dict[str, RequestStream] = {}  # the engine thread's own
        self._inbox: deque[RequestStream | str] = deque()  # streams to begin, ids to abort
        self._ring = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """vLLM's way to make one."""
        return cls(**vars(engine_args))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *gone: object) -> None:
        await self.close()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | BeamSearchParams | None = None,
        request_id: str | None = None,
        *,
        salt: str = "",
        priority: int = 0,
        adapter: str = "",
        lora_request: LoRARequest | None = None,
        return_cache_explanation: bool = False,
    ) -> AsyncGenerator[RequestOutput]:
        """Yields the result as it grows; `outputs[i].delta` is what is new.  Leaving the loop, or
        cancelling the task, ends the request; so does `abort` with its `request_id`.
        """
        lanes = ContextFactory(salt, priority, adapter, lora_request, return_cache_explanation)
        collector = self.llm.make_collector(prompt, sampling_params, lanes, request_id)
        async with self._free:
            stream = self._begin(collector)
            try:
                finished = False
                while not finished:
                    output = await stream.next()
                    assert isinstance(output, RequestOutput)
                    finished = output.finished
                    yield output
            finally:
                self._leave(stream)

    async def embed(
        self,
        prompt: Prompt,
        params: PoolingParams | None = None,
        *,
        salt: str = "",
        priority: int = 0,
        adapter: str = "",
    ) -> EmbeddingRequestOutput:
        """The prompt's vector."""
        lanes = ContextFactory(salt, priority, adapter)
        collector = self.llm.make_collector(prompt, params or PoolingParams(), lanes)
        async with self._free:
            stream = self._begin(collector)
            try:
                output = await stream.next()
                assert isinstance(output, EmbeddingRequestOutput)
                return output
            finally:
                self._leave(stream)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its reader gets an output with the finish reason "abort".  An unknown id
        is no error.
        """
        with self._ring:
            self._inbox.append(request_id)
            self._ring.notify()

    async def get_tokenizer(self) -> PreTrainedTokenizer:
        return self.llm.get_tokenizer()

    async def close(self) -> None:
        """Ends what is under way (its readers get a `RequestError`) and the thread."""
        self._end()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def shutdown(self) -> None:
        """`close` for callers without an event loop; frees the model's memory too."""
        self._end()
        if self._thread is not None:
            self._thread.join()
        self.llm.close()

    def _end(self) -> None:
        with self._ring:
            self._closed = True
            self._ring.notify()

    def _begin(self, collector: Collector | VectorCollector) -> RequestStream:
        stream = RequestStream(collector)
        with self._ring:
            if self._closed:
                raise make_closed_error()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="flyweight", daemon=True)
                self._thread.start()
            self._inbox.append(stream)
            self._ring.notify()
        return stream

    def _leave(self, stream: RequestStream) -> None:
        """Ends a request whose reader left before the end."""
        if not stream.over:
            with self._ring:
                self._inbox.append(stream.collector.request.id)
                self._ring.notify()

    # --- the engine's thread ---

    def _serve(self) -> None:
        """Steps while there is work, sleeps while there is none; background work in between."""
        engine, background = self.llm.loaded.engine, self.llm.background
        while True:
            with self._ring:
                wait = 0 if background.wanted else None
                self._ring.wait_for(lambda: self._closed or self._inbox or engine.busy, wait)
                if self._closed:
                    break
            try:
                while self._inbox:
                    self._take(self._inbox.popleft())
                if engine.busy:
                    self._step()
                    background.step()
                else:
                    background.run_idle()
            except RankLost as lost:  # nothing can be computed any more
                with self._ring:
                    self._closed = True
                self._end_all(lost)
                break
            except Exception as error:  # a bug of ours, or no memory: every reader gets it
                self._end_all(error)
        self._end_all(make_closed_error())
        engine.close()

    def _take(self, item: RequestStream | str) -> None:
        driver = self.llm.loop.driver
        if isinstance(item, str):
            ended = driver.abort(item)
            stream = self._streams.pop(item, None)
            if stream is not None and ended:
                stream.feed(ended)
            return
        request = item.collector.request
        if request.id in self._streams:
            item.fail(RequestError(f"request_id {request.id!r} is in use by an unfinished request"))
            return
        self._add(item, request)

    def _add(self, stream: RequestStream, request: Request) -> None:
        self._streams[request.id] = stream
        try:
            self.llm.loop.driver.add(request)
        except FlyweightError as refused:
            del self._streams[request.id]
            stream.fail(refused)

    def _step(self) -> None:
        driver = self.llm.loop.driver
        by_request: dict[str, list[Event]] = {}
        for event in driver.step():
            by_request.setdefault(event.id, []).append(event)
        for id, events in by_request.items():
            stream = self._streams[id]
            for index in stream.feed(events):
                driver.stop(id, index)
            if stream.over:
                del self._streams[id]
            elif request := stream.collector.take_next():
                self._add(stream, request)

    def _end_all(self, error: BaseException) -> None:
        """Everything under way ends with an error; the engine can be used again."""
        with self._ring:
            waiting, self._inbox = self._inbox, deque()
        for id, stream in self._streams.items():
            self.llm.loop.driver.abort(id)
            stream.fail(error)
        self._streams.clear()
        for item in waiting:
            if isinstance(item, RequestStream):
                item.fail(error)


def make_closed_error() -> RequestError:
    return RequestError("this AsyncLLM is closed; make another")


AsyncLLMEngine = AsyncLLM  # vLLM's older name
