"""What all dialects share: reading bodies, making prompts off the event loop, and running requests.

Invariant: nothing reaches the engine that was not checked; whatever becomes of a client, what it
began is ended.  Knows no dialect.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from flyweight.asking import Asking, Params, spelled
from flyweight.collect import Collector, Piece, VectorCollector
from flyweight.errors import RequestError, nearest
from flyweight.prompts import Asked, Lane
from flyweight.server.client import EngineClient, Stream
from flyweight.server.counts import Counts
from flyweight.server.door import Door, Place
from flyweight.server.errors import HttpError
from flyweight.server.judges import Judges, worded
from flyweight.server.ledger import Ledger
from flyweight.server.log import Log
from flyweight.server.metrics import Metrics
from flyweight.server.settings import ServerSettings
from flyweight.server.speech import Speech
from flyweight.server.visits import visit_of
from flyweight.server.watch import Watch
from flyweight.structured import StructuredOutputs, check
from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import SamplingParams
from flyweight.untrusted import shown

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)
MOST_ITEMS = 1 << 15  # of a body, ids left out: what is wrong with each of them would be listed
READERS = 2  # threads that tokenise and render; one long prompt does not hold up all others


class Front:
    """The server's insides: one model on one engine."""

    def __init__(
        self,
        settings: ServerSettings,
        client: EngineClient,
        asking: Asking,
        defaults: dict[str, Any],
        names: Sequence[str],
        ledger: Ledger,
    ) -> None:
        self.settings, self.client, self.asking = settings, client, asking
        self.defaults, self.names = defaults, tuple(names)
        self.speech = Speech.of(settings, asking.tokenizer)
        self.door = Door(settings)
        self.log = Log(settings.log_format)
        self.counts = Counts(asking.facts.max_model_len)
        self.watch = Watch(self.counts, lambda: client.streams, self.log)
        self.metrics = Metrics(self.counts, client, self.names[0])
        self.ledger = ledger
        self.created = int(time.time())
        self.active = 0  # HTTP requests that have begun and not ended
        self.judges = Judges(lambda: spelled(asking.tokenizer), settings.compile_seconds)
        self._readers = ThreadPoolExecutor(READERS, "reader")

    def now(self) -> int:
        """Seconds since 1970, as OpenAI's `created` has them."""
        return int(time.time())

    @cached_property
    def infill(self) -> Infill | None:
        """How a hole is marked; looked for when it is first asked for."""
        return Infill.of(self.tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.asking.tokenizer

    def read(self, request: Request, raw: bytes, kind: type[Body]) -> Body:
        """A body as what its route takes.  Raises `HttpError`."""
        most = self.settings.body_values  # each costs a comma, and much more once it is read
        if raw.count(b",") >= most:
            raise HttpError(400, f"the body has {most} commas or more; --max-body-values sets that")
        try:
            given = msgspec.json.decode(raw)
        except RecursionError:
            raise HttpError(400, "the body is nested too deeply") from None
        except UnicodeDecodeError:
            raise HttpError(400, "the body is not valid UTF-8") from None
        except msgspec.DecodeError as error:
            raise HttpError(400, f"the body is not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise HttpError(400, "the body is not a JSON object")
        if raw.count(b",") > MOST_ITEMS // 8 and items(given) > MOST_ITEMS:
            raise HttpError(400, f"the body has more than {MOST_ITEMS} values that are no ids")
        if self.settings.lenient:
            extra = [name for name in given if name not in known(kind)]
            request.state.ignored = extra
            given = {name: value for name, value in given.items() if name not in extra}
        try:
            return kind.model_validate(given)
        except ValidationError as error:
            raise refused(error, kind) from None
        except RecursionError:
            raise HttpError(400, "the body is nested too deeply") from None

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Runs what takes long for a long prompt, away from the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, work, *args)

    def lane(
        self,
        model: str | None,
        salt: str | None,
        priority: int | None,
        explain: bool | None = None,
    ) -> Lane:
        """How a request for `model` runs; an adapter is a model of its own name."""
        adapter = ""
        if model is not None and model not in self.names:
            known_names = [*self.names, *self.asking.facts.adapters]
            if model not in known_names:
                raise HttpError(
                    404,
                    f"model = {shown(model)} is not served here{nearest(model[:200], known_names)}"
                    f"; served: {', '.join(known_names)}",
                    "model",
                    "model_not_found",
                )
            adapter = model
        return Lane(salt or "", priority or 0, adapter, bool(explain))

    async def ask(
        self, prompts: Sequence[Any], params: Params, lane: Lane, schema: str = ""
    ) -> list[Asked]:
        """Prompts tokenised and checked, and what their answers must look like; `schema` is where
        the client has it, if that is not structured_outputs.
        """
        self._judge(len(prompts), params)
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            await self._constrain(params.structured_outputs, schema)
        asked = await self.aside(lambda: [self.asking.ask(p, params, lane) for p in prompts])
        self._weigh(asked)
        return asked

    async def _constrain(self, outputs: StructuredOutputs, schema: str) -> None:
        try:
            check(outputs, self.settings.schema_bytes, self.settings.schema_depth)
            await self.judges.check(outputs)
        except RequestError as error:
            raise worded(error, schema) from None

    def begin(self, asked: Sequence[Asked], request: Request) -> "Bundle":
        """Runs checked prompts, of an HTTP request.  Raises `HttpError` where there is no room."""
        choices = sum(width(one) for one in asked)
        tokens = sum(len(one.tokens) for one in asked)
        bundle = Bundle(self, asked, self.door.enter(choices, tokens))
        visit_of(request.scope).collectors = bundle.collectors
        return bundle

    def _judge(self, prompts: int, params: Params) -> None:
        """What a request may ask for, before any of it is read."""
        limits = self.settings
        within("prompt", prompts, limits.prompts, "prompts")
        if not isinstance(params, SamplingParams):
            return
        choices = max(params.n, params.best_of or 1)
        within("n", choices, limits.choices, "choices of a prompt")
        within("n", choices * prompts, limits.request_choices, "choices of all prompts")
        within("stop", len(params.stop), limits.stops, "strings", least=0)
        scores = max(params.logprobs or 0, params.prompt_logprobs or 0)
        within("logprobs", scores, limits.logprobs, "of a token", least=0)
        within("logit_bias", len(params.logit_bias), limits.biases, "entries", least=0)

    def _weigh(self, asked: Sequence[Asked]) -> None:
        """What all its choices would come to."""
        longest, total = self.asking.facts.max_model_len, 0
        for one in asked:
            answer = one.params.max_tokens
            room = longest - len(one.tokens)
            total += width(one) * (len(one.tokens) + min(room, room if answer is None else answer))
        most = self.settings.request_tokens
        within("max_tokens", total, most, "tokens of all prompts and choices", least=0)


def width(asked: Asked) -> int:
    """How many sequences it takes to answer a prompt."""
    if asked.pooling is not None:
        return 1
    if asked.beam is not None:
        return asked.beam.beam_width
    return max(asked.params.n, asked.params.best_of or 1)


def within(name: str, found: int, most: int, what: str, least: int = 1) -> None:
    if not least <= found <= most:
        raise RequestError(f"{name}: {found} {what}; allowed: {least} to {most}", name)


class Bundle:
    """The requests of one HTTP request, and what they bring.  They are under way once it exists;
    `close` ends what is left of them.
    """

    def __init__(self, front: Front, asked: Sequence[Asked], place: Place) -> None:
        self.front, self.place = front, place
        self.collectors: list[Collector | VectorCollector] = []
        self._news = asyncio.Event()
        self._streams: list[Stream] = []
        self._deadline: HttpError | None = None
        self._closed = False
        seconds = front.settings.request_seconds
        self._late = asyncio.get_running_loop().call_later(seconds, self._too_late, seconds)
        front.active += 1
        try:
            for one in asked:
                self._submit(one)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Bundle":
        return self

    def __exit__(self, *gone: object) -> None:
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._late.cancel()
        for stream in self._streams:
            self.front.client.leave(stream)
            self.front.watch.ended(stream)
        self.front.door.leave(self.place, self.place.requests, self.place.tokens)
        self.front.active -= 1

    async def pieces(self) -> AsyncGenerator[list[tuple[int, Piece]]]:
        """What is new, with the number of the prompt it belongs to, until all has come.  Raises
        what ended a request.
        """
        live = list(enumerate(self._streams))
        while live:
            await self._next()
            found: list[tuple[int, Piece]] = []
            for i, stream in live:
                if stream.error is not None:
                    raise stream.error
                collector = stream.collector
                if isinstance(collector, Collector):
                    found += [(i, piece) for piece in collector.pieces()]
            if found:
                _judge(found)
                yield found
            live = [(i, stream) for i, stream in live if not stream.over]

    async def done(self) -> list[Collector | VectorCollector]:
        """Waits for everything."""
        while not all(stream.over for stream in self._streams):
            await self._next()
        for stream in self._streams:
            if stream.error is not None:
                raise stream.error
        for collector in self.collectors:
            if isinstance(collector, Collector):
                _judge([(0, piece) for piece in collector.pieces()])
        return self.collectors

    async def _next(self) -> None:
        await self._news.wait()
        self._news.clear()
        if self._deadline is not None:
            raise self._deadline

    def _submit(self, asked: Asked) -> None:
        asking = self.front.asking
        make = asking.collector if asked.pooling is None else asking.vector
        collector = make(asked, asking.id())
        stream = self.front.client.submit(collector, self._news)
        choices, tokens = width(asked), len(asked.tokens)
        stream.begun = lambda: self.front.door.leave(self.place, choices, tokens)
        self.collectors.append(collector)
        self._streams.append(stream)

    def _too_late(self, seconds: float) -> None:
        self._deadline = HttpError(
            504, f"not answered within {seconds:g} seconds; --request-timeout sets that",
            code="deadline",
        )  # fmt: skip
        self._news.set()


def _judge(found: Sequence[tuple[int, Piece]]) -> None:
    """Raises where the engine could not finish a choice."""
    for _, piece in found:
        if piece.finish == "error":
            words = f"the engine failed on this request: {piece.reason}"
            raise HttpError(500, words, code="engine_error")


def items(value: Any) -> int:
    """How many values are in lists and objects; lists of ids count as one."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            count += len(one)
            left.extend(one.values())
        elif isinstance(one, list) and set(map(type, one)) != {int}:
            count += len(one)
            left.extend(one)
    return count


def known(kind: type[BaseModel]) -> set[str]:
    """Names a body may have."""
    fields = kind.model_fields
    return {*fields, *(f.alias for f in fields.values() if f.alias)}


def refused(error: ValidationError, kind: type[BaseModel]) -> HttpError:
    """The first mistake of a body, in our words."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in first["loc"] if _names_a_field(str(part))]
    name = ".".join(place)[:200] or "body"
    if first["type"] == "extra_forbidden":
        hint = nearest(place[-1][:100], known(kind)) if len(place) == 1 else ""
        return HttpError(
            400, f"{shown(name)} is not a field that is taken here{hint}", name, "unknown_field"
        )
    if first["type"] == "missing":
        return HttpError(400, f"{name} is missing", name, "missing_field")
    value = shown(first.get("input"))
    words = first["msg"].removeprefix("Value error, ")
    words = words.removeprefix("Input should be ")
    return HttpError(400, f"{name} = {value} is not valid; allowed: {words}", name, "bad_value")


def _names_a_field(part: str) -> bool:
    """Whether a part of an error's place is the client's, and no kind that a union has tried."""
    return not part[:1].isupper() and "[" not in part
