"""The messages between the API server and the engine process, and their framing.

Invariant: numbers, text and bytes in msgpack, each frame after its length in four bytes and its
engine's number in two.  An invalid message ends the pipe.
"""

import struct
from array import array
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from math import inf
from typing import Any, Literal

import msgspec

from flyweight.engine.metrics import EngineMetrics
from flyweight.errors import EngineError, FlyweightError, RequestError
from flyweight.params.repetition import RepetitionDetectionParams
from flyweight.params.structured import StructuredOutputs
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.resources import TOKEN_CACHE
from flyweight.types import (
    Event,
    Finish,
    Request,
    RequestWords,
    Reuse,
    SamplingParams,
    StepUse,
    ThinkingBudget,
    Timings,
    TokenLogprobs,
)

Topic = Literal["ping", "steps", "kv", "reset"]
HEADER = struct.Struct("<IH")  # bytes of the message, number of the engine
LONGEST = 1 << 30  # bytes of a frame
PLAIN = SamplingParams()
FORM, CIRCLES = "structured_outputs", "repetition_detection"
LOCAL = ("logits_processors",)  # functions; they stay in their process


class EngineSetup(msgspec.Struct, array_like=True, tag=0):
    """To build an engine: its `Settings`, and how to run it.  It may hold `room` bytes (see
    `EngineResources`), gets step time in proportion to its `weight`, and the API server keeps
    `token_cache` bytes of token ids for it.  Other processes have the settings of a `replica`.
    """

    settings: dict[str, Any]
    target_step_time: float
    max_prefill_delay: float = inf
    fault: str = ""
    room: int = 0
    fixed: bool = False
    weight: float = 1.0
    token_cache: int = TOKEN_CACHE
    replica: bool = False


class Submit(msgspec.Struct, array_like=True, tag=1):
    """A request; `params` are the options that are not the default."""

    id: str
    tokens: bytes  # int32, native byte order
    params: dict[str, Any]
    stop_ids: list[int]
    max_tokens: int
    seed: int
    priority: int
    arrival: float
    salt: str
    adapter: str
    bad: list[tuple[int, ...]]
    breakers: list[int]
    pooling: dict[str, Any] | None
    beam: dict[str, Any] | None
    explain: bool = False
    thought: ThinkingBudget | None = None
    score_from: int = 0
    measure: bool = False
    start_by: float = inf
    drafted: bool = True

    @classmethod
    def of(cls, request: Request) -> "Submit":
        given = {f.name: getattr(request.params, f.name) for f in fields(SamplingParams)}
        params = {n: v for n, v in given.items() if n not in LOCAL and v != getattr(PLAIN, n)}
        if request.params.structured_outputs is not None:
            params[FORM] = request.params.structured_outputs.given
        if CIRCLES in params:
            params[CIRCLES] = asdict(params[CIRCLES])
        return cls(
            id=request.id,
            tokens=array("i", request.tokens).tobytes(),
            params=params,
            stop_ids=list(request.stop_ids),
            max_tokens=request.max_tokens,
            seed=request.seed,
            priority=request.priority,
            arrival=request.arrival,
            salt=request.salt,
            adapter=request.adapter,
            bad=list(request.words.bad),
            breakers=list(request.words.breakers),
            pooling=asdict(request.pooling) if request.pooling else None,
            beam=asdict(request.beam) if request.beam else None,
            explain=request.explain,
            thought=request.words.thought,
            score_from=request.score_from,
            measure=request.measure,
            start_by=request.start_by,
            drafted=request.drafted,
        )

    def to_request(self) -> Request:
        """The request, validated again.  Raises `RequestError`."""
        params = dict(self.params)
        if FORM in params:
            params[FORM] = StructuredOutputs(**params[FORM])
        if CIRCLES in params:
            params[CIRCLES] = RepetitionDetectionParams(**params[CIRCLES])
        return Request(
            id=self.id,
            tokens=tuple(memoryview(self.tokens).cast("i")),
            params=SamplingParams(**params),
            stop_ids=frozenset(self.stop_ids),
            max_tokens=self.max_tokens,
            seed=self.seed,
            priority=self.priority,
            arrival=self.arrival,
            salt=self.salt,
            adapter=self.adapter,
            words=RequestWords(tuple(self.bad), frozenset(self.breakers), self.thought),
            pooling=PoolingParams(**self.pooling) if self.pooling else None,
            beam=BeamSearchParams(**self.beam) if self.beam else None,
            explain=self.explain,
            score_from=self.score_from,
            measure=self.measure,
            start_by=self.start_by,
            drafted=self.drafted,
        )


class Abort(msgspec.Struct, array_like=True, tag=2):
    """Ends a request, or one choice of it; `stopped`: a stop string was found."""

    id: str
    index: int | None = None
    stopped: bool = False


class EngineQuestion(msgspec.Struct, array_like=True, tag=3):
    """A query about the engine itself; its `EngineAnswer` has the same number."""

    number: int
    topic: Topic


class Unload(msgspec.Struct, array_like=True, tag=4):
    """Drops an engine that has no requests; answered by `Unloaded`."""


class Ready(msgspec.Struct, array_like=True, tag=0):
    """The engine is built; `facts` describe it."""

    facts: dict[str, Any]


class Failed(msgspec.Struct, array_like=True, tag=1):
    """The engine cannot be built: the message for the user; `short` of memory, it might be once
    another engine is unloaded.
    """

    message: str
    short: bool = False


class StepEvents(msgspec.Struct, array_like=True, tag=2):
    """An `Event`, flat: `scored` are (chosen, rank, best ids, their log-probabilities)."""

    id: str
    index: int
    tokens: tuple[int, ...]
    finish: str | None = None
    stop_token: int | None = None
    cached: int = 0
    timings: tuple[float, float, float, float, float | None] | None = None
    scored: list[tuple[float, int, tuple[int, ...], tuple[float, ...]]] = []
    prompt: list[tuple[float, int, tuple[int, ...], tuple[float, ...]]] = []
    vector: bytes | None = None  # float32, native byte order
    error: dict[str, Any] | None = None
    total: float | None = None
    score: float | None = None
    reuse: tuple[int, str, int | None, tuple[int, ...], bool, int] | None = None
    use: tuple[float, float | None] | None = None  # see `StepUse`

    @classmethod
    def of(cls, event: Event) -> "StepEvents":
        timings = event.timings
        return cls(
            event.id,
            event.index,
            event.tokens,
            event.finish.value if event.finish else None,
            event.stop_token,
            event.cached,
            astuple(timings) if timings else None,
            [_flatten(s) for s in event.logprobs] if event.logprobs else [],
            [_flatten(s) for s in event.prompt_logprobs] if event.prompt_logprobs else [],
            event.vector.tobytes() if event.vector is not None else None,
            pack_error(event.error) if event.error is not None else None,
            event.total,
            event.score,
            astuple(event.reuse) if event.reuse else None,
            (event.use.seconds, event.use.joules) if event.use else None,
        )

    def to_event(self) -> Event:
        vector = None
        if self.vector is not None:
            vector = array("f", self.vector)
        return Event(
            self.id,
            self.index,
            self.tokens,
            tuple([TokenLogprobs(*s) for s in self.scored]) if self.scored else (),
            Finish(self.finish) if self.finish else None,
            self.stop_token,
            self.cached,
            Timings(*self.timings) if self.timings else None,
            vector,
            tuple([TokenLogprobs(*s) for s in self.prompt]) if self.prompt else (),
            unpack_error(self.error) if self.error is not None else None,
            self.total,
            self.score,
            Reuse(*self.reuse) if self.reuse else None,
            use=StepUse(*self.use) if self.use else None,
        )


def pack_error(error: FlyweightError) -> dict[str, Any]:
    """An error as its data; `ours`: the request is not the cause."""
    return {**error.data, "ours": not isinstance(error, RequestError)}


def unpack_error(data: dict[str, Any]) -> FlyweightError:
    given = {name: value for name, value in data.items() if name != "ours"}
    return EngineError(**given) if data["ours"] else RequestError(**given)


class Gauges(msgspec.Struct, array_like=True):
    """The engine's state after a step."""

    running: int
    waiting: int
    blocks: int
    free_blocks: int
    totals: EngineMetrics
    tokens: int  # computed in this step
    seconds: float  # it took
    busy: float  # seconds within steps since the start
    accepted: tuple[int, ...] = ()  # draft tokens, by position in the draft
    prompt_tokens: int = 0  # of `tokens`, those of prompts
    swapped: int = 0  # bytes of swap space in use


class StepReport(msgspec.Struct, array_like=True, tag=3):
    """A step: its events, which were produced `at` that time, and the requests that it scheduled
    for the first time.
    """

    news: list[StepEvents]
    started: list[str]
    gauges: Gauges
    stays: list[tuple[float, float, tuple[float, ...]]] = []  # see `kv.residency`
    at: float = 0.0  # of the clock that all processes share


class RequestRefused(msgspec.Struct, array_like=True, tag=4):
    """A request that cannot be served."""

    id: str
    error: dict[str, Any]

    @classmethod
    def of(cls, id: str, error: FlyweightError) -> "RequestRefused":
        return cls(id, pack_error(error))


class EngineAnswer(msgspec.Struct, array_like=True, tag=5):
    """The answer to an `EngineQuestion`."""

    number: int
    value: dict[str, Any]


class LoadingProgress(msgspec.Struct, array_like=True, tag=6):
    """The progress of loading: `what` the text is; for "progress", the bytes done of a total."""

    what: Literal["plan", "progress", "warning", "note"]
    text: str
    done: int = 0
    total: int = 0


class Unloaded(msgspec.Struct, array_like=True, tag=7):
    """The engine is gone, and its memory given back."""


ToEngine = EngineSetup | Submit | Abort | EngineQuestion | Unload
ToFront = Ready | Failed | StepReport | RequestRefused | EngineAnswer | LoadingProgress | Unloaded

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: ToEngine | ToFront, engine: int = 0) -> bytes:
    """A message to or from that engine."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body), engine) + body


class PipeFrames:
    """Splits a stream of bytes into messages."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._held = bytearray()

    def push(self, data: bytes) -> list[tuple[int, Any]]:
        """The messages that are complete now, each with its engine's number.  Raises
        `msgspec.DecodeError` or `ValueError`.
        """
        self._held += data
        found: list[tuple[int, Any]] = []
        at = 0
        while len(self._held) - at >= HEADER.size:
            size, engine = HEADER.unpack_from(self._held, at)
            if size > LONGEST:
                raise ValueError(f"a frame of {size} bytes")
            end = at + HEADER.size + size
            if len(self._held) < end:
                break
            with memoryview(self._held)[at + HEADER.size : end] as body:
                found.append((engine, self._decoder.decode(body)))
            at = end
        del self._held[:at]
        return found


def _flatten(scored: TokenLogprobs) -> tuple[float, int, tuple[int, ...], tuple[float, ...]]:
    return scored.chosen, scored.rank, tuple(scored.top_ids), tuple(scored.top)


def to_portable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as messages have them: paths as text."""
    return {name: str(v) if hasattr(v, "__fspath__") else v for name, v in given.items()}
