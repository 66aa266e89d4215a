"""One run of `bench serve`: look for the server, make the requests, warm up, play, sum up; then the
same on another.

Invariant: all servers of a run get the same requests at the same times.
"""

import asyncio
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flyweight.bench.serving.arrivals import ArrivalRate
from flyweight.bench.serving.client_apis import find_api
from flyweight.bench.serving.connection import ServerAddress
from flyweight.bench.serving.load import (
    PATIENCE,
    LoadResult,
    ProgressCallback,
    RequestSchedule,
    Target,
    get,
    play,
    read_draft_statistics,
    wait_until_ready,
)
from flyweight.bench.serving.requests import LoadRequest, RequestManner
from flyweight.bench.serving.traces import Trace
from flyweight.bench.serving.vocabulary import UNKNOWN, IdPrompts, PromptMaker, TextPrompts
from flyweight.config import Settings
from flyweight.describe import DEFAULT_MODEL, find, open_tokenizer
from flyweight.errors import ConfigError, nearest
from flyweight.text.tokenizer import Tokenizer

ASSIGNMENTS = ("random", "round-robin")
FORMS = ("auto", "text", "ids")


class Dataset(Protocol):
    def make_requests(
        self, words: PromptMaker, count: int, rng: random.Random
    ) -> list[LoadRequest]: ...


@dataclass(frozen=True, slots=True)
class TargetServer:
    """A server as it was named: its address, its API, the requested model ("" is its first)."""

    place: ServerAddress
    backend: str
    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """What every request has in its body and headers."""

    sampling: Mapping[str, Any]
    ignore_eos: bool = False
    logprobs: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The requests: which, how many, and when."""

    data: Dataset
    count: int
    pace: ArrivalRate
    most: int | None = None
    warmups: int = 0
    seed: int = 0
    form: str = "auto"
    tokenizer: str = ""
    prefix: str = "bench-"
    assignment: str = "random"  # of models, where there are several
    patience: float | None = None

    def __post_init__(self) -> None:
        if self.assignment not in ASSIGNMENTS:
            known = ", ".join(ASSIGNMENTS)
            raise ConfigError(
                f"lora_assignment = {self.assignment!r}; allowed: {known}"
                f"{nearest(self.assignment, ASSIGNMENTS)}"
            )
        if self.form not in FORMS:
            known = ", ".join(FORMS)
            raise ConfigError(
                f"prompt_form = {self.form!r}; allowed: {known}{nearest(self.form, FORMS)}"
            )
        if isinstance(self.data, Trace) and self.pace != ArrivalRate():
            raise ConfigError("a trace sets the times; leave rate, burstiness and ramp out")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server that is there: the model's name, the connection, the models it lists, the
    size of its vocabulary.
    """

    server: TargetServer
    model: str
    target: Target
    cards: Sequence[Mapping[str, Any]]
    vocab: int | None

    @property
    def longest(self) -> int | None:
        lengths = [card.get("max_model_len") for card in self.cards]
        found = [length for length in lengths if isinstance(length, int)]
        return min(found, default=None)


class LoadSession:
    """Servers that are there and the load for them; `note` gets what a person should know."""

    def __init__(self, wanted: LoadPlan, body: RequestBody, note: Callable[[str], None]) -> None:
        self.wanted, self.body, self.note = wanted, body, note
        self.runner = asyncio.Runner(loop_factory=_choose_loop())
        self.servers: list[ServerFacts] = []
        self.tokenizer_name = ""

    def __enter__(self) -> "LoadSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.close()

    def look(self, server: TargetServer, seconds: float) -> None:
        """Waits for a server.  Raises `ConfigError`."""
        self.servers.append(self.runner.run(examine_server(server, self.body, seconds)))

    def load(self) -> RequestSchedule:
        """The requests, which all servers found so far can take."""
        wanted = self.wanted
        rng = random.Random(wanted.seed)
        data, traced = wanted.data, isinstance(wanted.data, Trace)
        if isinstance(data, Trace) and data.longest is None:
            lengths = [one.longest for one in self.servers if one.longest is not None]
            data = replace(data, longest=min(lengths, default=None))
        requests = data.make_requests(self._make_prompt_maker(), wanted.count, rng)
        times = (
            [request.at for request in requests]
            if traced
            else wanted.pace.draw_times(len(requests), rng)
        )
        turns: Sequence[int] = range(len(requests))
        if wanted.assignment == "random":
            own = random.Random(f"{wanted.seed} turns")  # the requests are the same either way
            turns = [own.randrange(1 << 30) for _ in requests]
        return RequestSchedule(requests, times, wanted.most, wanted.prefix, turns, wanted.patience)

    def play(
        self, server: ServerFacts, load: RequestSchedule, report_progress: ProgressCallback
    ) -> LoadResult:
        """Warms up, then the load."""
        if self.wanted.warmups:
            requests = [load.requests[i % len(load.requests)] for i in range(self.wanted.warmups)]
            warm = RequestSchedule(
                requests, [0.0] * len(requests), load.most or 1, f"{load.prefix}warm-",
                patience=load.patience,
            )  # fmt: skip
            self.runner.run(play(server.target, warm, lambda done, total: None))
        place, headers = server.target.place, server.target.headers
        before = self.runner.run(read_draft_statistics(place, headers))
        played = self.runner.run(play(server.target, load, report_progress))
        after = (
            self.runner.run(read_draft_statistics(place, headers)) if before is not None else None
        )
        drafts = after.subtract(before) if before is not None and after is not None else None
        return replace(played, drafts=drafts)

    def _make_prompt_maker(self) -> PromptMaker:
        takes_ids = all(one.target.api.takes_ids for one in self.servers)
        form = self.wanted.form
        if form == "ids" and not takes_ids:
            raise ConfigError("prompt_form = 'ids': chat takes text")
        tokenizer = self._load_tokenizer()
        if tokenizer is not None:
            if form == "ids":
                return IdPrompts(tokenizer.vocab_size, tokenizer, tokenizer.special_ids)
            return TextPrompts(tokenizer)
        if form == "text" or not takes_ids:
            raise ConfigError("texts are counted with a tokenizer; give --tokenizer PATH")
        sizes = [one.vocab for one in self.servers if one.vocab]
        if len(sizes) < len(self.servers):
            self.note(f"the vocabulary's size is not known; prompts are of ids below {UNKNOWN}")
            sizes.append(UNKNOWN)
        return IdPrompts(min(sizes))

    def _load_tokenizer(self) -> Tokenizer | None:
        """The one that was named, else the model's where the server names a file that is here."""
        named = self.wanted.tokenizer or self._find_model_name()
        self.tokenizer_name = named
        return open_tokenizer(find(Settings.of(model=named))) if named else None

    def _find_model_name(self) -> str:
        first = self.servers[0]
        names = [first.model, *(str(card.get("root") or "") for card in first.cards[:1])]
        here = (n for n in names if n == DEFAULT_MODEL or (n and os.path.exists(n)))
        return next(here, "")


async def examine_server(server: TargetServer, body: RequestBody, seconds: float) -> ServerFacts:
    cards = await wait_until_ready(server.place, body.headers, seconds)
    names = [str(card["id"]) for card in cards if card.get("id")]
    first = server.name or (names[0] if names else "")
    if not first:
        raise ConfigError(f"{server.place} lists no models; give --model NAME")
    manner = RequestManner(
        body.adapters or (first,), body.sampling, body.ignore_eos, body.logprobs, body.extra
    )
    target = Target(server.place, find_api(server.backend), manner, server.path, body.headers)
    return ServerFacts(
        server, first, target, cards, await load_vocabulary(server.place, cards, body.headers)
    )


async def load_vocabulary(
    place: ServerAddress, cards: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
) -> int | None:
    """The size a server reports: llama-server in its list of models, ours on a page of its own."""
    meta = cards[0].get("meta") if cards else None
    found = meta.get("n_vocab") if isinstance(meta, dict) else None
    if found is None:
        try:
            _, page = await asyncio.wait_for(get(place, "/server_info", headers), PATIENCE)
        except (OSError, TimeoutError):
            return None  # a server without the page may do anything
        engine = page.get("engine") if isinstance(page, dict) else None
        found = engine.get("vocab") if isinstance(engine, dict) else None
    return found if isinstance(found, int) and found > 1 else None


def _choose_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for every system
        return asyncio.new_event_loop
    return uvloop.new_event_loop
