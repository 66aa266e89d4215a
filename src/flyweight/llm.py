"""Offline use: one process, no extra thread, so a breakpoint works.  Names and results are vLLM's.

Invariant: every request added is finished or aborted before `generate`, `chat` or `stream` returns
or raises, and Ctrl-C falls between steps, so an `LLM` can be used again after it.
"""

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from random import Random, SystemRandom
from typing import Any

from flyweight.build import Loaded, Notify, build
from flyweight.collect import Collector
from flyweight.config import Settings
from flyweight.errors import CheckpointError, RequestError
from flyweight.prompts import Asked, Prompt, Reader, listed
from flyweight.results import RequestOutput
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import Request, SamplingParams
from flyweight.waiting import Progress, whole

Message = Mapping[str, Any]
DEFAULTS = {  # of generation_config.json, as vLLM reads it
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


class LLM:
    """A model with its engine.

    `model` is a path (a .gguf file or a Hugging Face directory); None is the story model inside the
    package.  Further keywords are the fields of `config.Settings`: max_model_len, memory_limit,
    threads, activations, kv_cache_dtype, ...  Raises `ConfigError` or `CheckpointError`, each one
    line.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        notify: Notify | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings.of(model=model, **settings)
        self.loaded: Loaded = build(self.settings, notify)
        spec, limits = self.loaded.spec, self.loaded.limits
        self._reader = Reader(self.tokenizer, spec.vocab, limits.max_model_len)
        self._ids = count()
        # requests under way, each with the list its run reads
        self._live: dict[str, tuple[Collector, dict[Collector, None]]] = {}
        seed = self.settings.seed
        self._seeds = SystemRandom() if seed is None else Random(seed)
        self.generation_defaults()  # a bad file is refused now, not at the first request

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The checkpoint's generation_config.json, where it has an opinion; vLLM's defaults
        elsewhere.
        """
        return SamplingParams(**self.generation_defaults())

    def generation_defaults(self) -> dict[str, Any]:
        """The sampling options generation_config.json sets, under `SamplingParams`' names."""
        theirs = self.loaded.generation
        given = {ours: theirs[name] for name, ours in DEFAULTS.items() if name in theirs}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            SamplingParams(**given)
        except RequestError as error:
            raise CheckpointError(f"generation_config.json: {error}") from None
        return given

    def stats(self) -> dict[str, Any]:
        """The engine's counters and the state of its pool, by name."""
        now = asdict(self.loaded.engine.stats())
        return {**now.pop("totals"), **now}

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        salt: str = "",
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Completes every prompt: text, token ids, or {"prompt": ..., "prompt_token_ids": ...}.

        Results come in the prompts' order.  Raises `RequestError` before any work if one of them
        cannot be served.  `salt` keeps this call's prefix-cache entries apart; lower `priority`
        goes first.
        """
        many = listed(prompts)
        params = self._params(sampling_params, len(many))
        asked = [self._reader.read(p, s, salt, priority) for p, s in zip(many, params, strict=True)]
        results: dict[str, RequestOutput] = {}
        places: list[str] = []  # ids, in the prompts' order

        def collectors() -> Iterator[Collector]:
            for one in asked:
                places.append(f"request-{next(self._ids)}")
                yield self._collector(one, places[-1])

        engine = self.loaded.engine
        with Progress(len(many), use_tqdm, engine.metrics.produced) as bar:
            for news in self._run(collectors()):
                bar.show(engine.metrics.produced)
                for collector in news:
                    if collector.finished:
                        results[collector.request.id] = collector.output()
                        bar.update()
        return [results[id] for id in places]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        salt: str = "",
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, through the model's chat template."""
        several = bool(messages) and not isinstance(messages[0], Mapping | str)
        talks: Any = messages if several else [messages]
        prompts = [self.conversation(talk, **(chat_template_kwargs or {})) for talk in talks]
        return self.generate(
            prompts, sampling_params, use_tqdm=use_tqdm, salt=salt, priority=priority
        )

    def conversation(self, messages: Sequence[Message], **variables: Any) -> Prompt:
        """The prompt the chat template makes of messages; `variables` are its own switches."""
        from flyweight.text.chat import render  # Jinja is not needed to continue text

        template = self.tokenizer.chat_template
        if template is None:
            raise RequestError(
                "messages: this model has no chat template; give a prompt", "messages"
            )
        text = render(template, messages, self.tokenizer, **variables)
        ids = self.tokenizer.encode(text, add_special=False)  # the template wrote BOS itself
        return {"prompt": text, "prompt_token_ids": ids}

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        salt: str = "",
        priority: int = 0,
    ) -> Generator[RequestOutput]:
        """Yields the result as it grows; `outputs[i].delta` is what is new.  Closing it early ends
        the request.  A bad prompt is refused at once, the clock starts with the first `next`.
        """
        (params,) = self._params(sampling_params, 1)
        asked = self._reader.read(prompt, params, salt, priority)
        id = f"request-{next(self._ids)}"
        runs = self._run(self._collector(asked, id, time.monotonic()) for _ in range(1))
        return (collector.output() for news in runs for collector in news)

    def _run(self, collectors: Iterator[Collector]) -> Iterator[list[Collector]]:
        """Steps until every request is answered; yields after each step the collectors it fed.
        Requests are added as the engine gets to them, so that thousands of prompts cost no more
        memory than the plan has.  What is left is aborted on the way out.  Several may run at once:
        each step feeds them all.
        """
        engine = self.loaded.engine
        mine: set[str] = set()
        news: dict[Collector, None] = {}  # in order
        coming = next(collectors, None)
        try:
            while coming or mine:
                with whole(engine):
                    while coming and self._room():
                        mine.add(coming.request.id)
                        self._live[coming.request.id] = coming, news
                        engine.add(coming.request)
                        coming = next(collectors, None)
                    if not news:  # else another caller's step already brought something
                        self._step()
                fed = list(news)
                news.clear()
                ended = {collector.request.id for collector in fed if collector.finished}
                mine -= ended
                for id in ended:
                    del self._live[id]
                yield fed
        finally:
            with whole(engine):
                for id in mine:
                    self._live.pop(id, None)
                    engine.abort(id)

    def _room(self) -> bool:
        """Whether the engine should know of one more request, to have enough to choose from."""
        limits, waiting = self.loaded.limits, self.loaded.engine.scheduler.waiting
        if len(waiting) >= limits.max_num_seqs:
            return False
        return sum(len(seq.tokens) for seq in waiting) < limits.blocks * limits.block_size

    def _step(self) -> None:
        """One step; feeds every live collector."""
        engine = self.loaded.engine
        for event in engine.step():
            collector, news = self._live[event.id]
            news[collector] = None
            if collector.feed(event):
                engine.stop(event.id, event.index)

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, wanted: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * wanted
        listed = isinstance(given, Sequence) and all(isinstance(p, SamplingParams) for p in given)
        if not listed or len(given) != wanted:
            found = f"has {len(given)} entries" if listed else f"= {str(given)[:80]!r}"
            raise RequestError(
                f"sampling_params {found} for {wanted} prompts; allowed: one SamplingParams, "
                "or a list with one for each",
                "sampling_params",
            )
        return given

    def _collector(self, asked: Asked, id: str, arrival: float | None = None) -> Collector:
        params, limits = asked.params, self.loaded.limits
        room = limits.max_model_len - len(asked.tokens)
        ends = frozenset() if params.ignore_eos else self.loaded.stop_ids
        seed = params.seed
        request = Request(
            id=id,
            tokens=tuple(asked.tokens),
            params=params,
            stop_ids=ends | frozenset(params.stop_token_ids),
            max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
            seed=self._seeds.getrandbits(64) if seed is None else seed % 2**64,
            arrival=asked.arrival if arrival is None else arrival,
            salt=asked.salt,
            priority=asked.priority,
            words=asked.words,
        )
        return Collector(request, self.tokenizer, asked.text)
