"""Offline use: one process, no extra thread, so a breakpoint works.  Names and results are vLLM's.

Invariant: every request added is finished or aborted before `generate`, `chat` or `stream` returns
or raises, and Ctrl-C falls between steps, so an `LLM` can be used again after it.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from flyweight.asking import (
    Asking,
    Facts,
    Message,
    Params,
    conversation,
    generation_options,
    spelled,
)
from flyweight.build import Loaded, Notify, build
from flyweight.collect import Collector, VectorCollector
from flyweight.config import Settings
from flyweight.errors import RequestError
from flyweight.loop import Gathers, Loop
from flyweight.prompts import Asked, Lane, Prompt, lanes_of, listed, one_each
from flyweight.results import EmbeddingRequestOutput, RequestOutput
from flyweight.sampling.grammar import Judge
from flyweight.tasks import BeamSearchParams, PoolingParams
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import SamplingParams
from flyweight.waiting import Patience, Progress

Output = TypeVar("Output", covariant=True)


class Answers(Gathers, Protocol[Output]):
    """A collector of one kind of output."""

    def output(self) -> Output: ...


class LLM:
    """A model with its engine.

    `model` is a path (a .gguf file or a Hugging Face directory) or a name on the Hugging Face Hub
    (`org/name`, `org/name:Q4_K_M`); None is the story model inside the package.  Further keywords
    are the fields of `config.Settings`: max_model_len, memory_limit, threads, activations,
    kv_cache_dtype, revision, ...  Raises `ConfigError` or `CheckpointError`, each one line.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        notify: Notify | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings.of(model=model, **settings)
        patience = Patience()
        try:
            self.loaded: Loaded = build(self.settings, notify or patience)
        finally:
            patience.stop()
        spec, limits = self.loaded.spec, self.loaded.limits
        adapters = tuple(self.settings.adapters)
        facts = Facts(
            spec.vocab, limits.max_model_len, limits.scored, self.loaded.stop_ids, adapters,
            self.settings.max_logprobs,
        )  # fmt: skip
        judge = Judge(lambda: spelled(self.tokenizer))
        self._asking = Asking(self.tokenizer, facts, self.settings.seed, judge)
        self._loop = Loop(self.loaded.engine, limits, self.loaded.moving)
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
        return generation_options(self.loaded.generation)

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
        adapter: str | Sequence[str] = "",
    ) -> list[RequestOutput]:
        """Completes every prompt: text, token ids, or {"prompt": ..., "prompt_token_ids": ...}.

        Results come in the prompts' order.  Raises `RequestError` before any work if one of them
        cannot be served.  `salt` keeps this call's prefix-cache entries apart; lower `priority`
        goes first.  `adapter` names one of `Settings.adapters` for all prompts, or one for each.
        """
        many = listed(prompts)
        params = self._params(sampling_params, len(many))
        lanes = lanes_of(salt, priority, adapter, len(many))
        asked = [self._asking.ask(*one) for one in zip(many, params, lanes, strict=True)]
        return self._all(asked, self._asking.collector, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        salt: str = "",
        priority: int = 0,
        adapter: str | Sequence[str] = "",
    ) -> list[EmbeddingRequestOutput]:
        """One vector a prompt: hidden states after the final norm, pooled."""
        many = listed(prompts)
        params = one_each("pooling_params", pooling_params, PoolingParams, len(many))
        lanes = lanes_of(salt, priority, adapter, len(many))
        asked = [self._asking.ask(*one) for one in zip(many, params, lanes, strict=True)]
        return self._all(asked, self._asking.vector, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams] | None = None,
        *,
        use_tqdm: bool = True,
        salt: str = "",
        priority: int = 0,
        adapter: str | Sequence[str] = "",
    ) -> list[RequestOutput]:
        """The likeliest continuations of every prompt that `beam_width` beams find, best first."""
        many = listed(prompts)
        searches = one_each("params", params, BeamSearchParams, len(many))
        lanes = lanes_of(salt, priority, adapter, len(many))
        asked = [self._asking.ask(*one) for one in zip(many, searches, lanes, strict=True)]
        return self._all(asked, self._asking.collector, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        salt: str = "",
        priority: int = 0,
        adapter: str | Sequence[str] = "",
        **variables: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, through the model's chat template; the other
        keywords are `conversation`'s.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping | str)
        talks: Any = messages if several else [messages]
        from flyweight.text.messages import switches  # Jinja is for chats alone

        given = switches(variables, chat_template_kwargs)
        prompts = [
            self.conversation(talk, chat_template=chat_template, tools=tools, **given)
            for talk in talks
        ]
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            salt=salt,
            priority=priority,
            adapter=adapter,
        )

    def conversation(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Prompt:
        """The prompt a chat template makes of messages: the model's, or the one that is given as
        text or by name.  `variables` are documents, add_generation_prompt, continue_final_message,
        and the template's own switches.
        """
        return conversation(
            self.tokenizer, messages, chat_template=chat_template, tools=tools, **variables
        )

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        salt: str = "",
        priority: int = 0,
        adapter: str = "",
    ) -> Generator[RequestOutput]:
        """Yields the result as it grows; `outputs[i].delta` is what is new.  Closing it early ends
        the request.  A bad prompt is refused at once, the clock starts with the first `next`.
        """
        (params,) = self._params(sampling_params, 1)
        if params.best_of not in (None, params.n):
            raise RequestError(
                f"best_of = {params.best_of}: which choices are the best is known when all have "
                f"ended; nearest valid: best_of = {params.n}, or generate",
                "best_of",
            )
        asking = self._asking
        asked = asking.ask(prompt, params, Lane(salt, priority, adapter))
        id = asking.id()
        runs = self._loop.run(asking.collector(asked, id, time.monotonic()) for _ in range(1))
        return (collector.output() for news in runs for collector in news)

    def collector(
        self,
        prompt: Prompt,
        params: Params | None = None,
        lane: Lane | None = None,
    ) -> "Collector | VectorCollector":
        """A checked request with what gathers its answer, for a front that steps the engine itself.
        Raises `RequestError`.
        """
        wanted = self._params(None, 1)[0] if params is None else params
        asked = self._asking.ask(prompt, wanted, lane or Lane())
        make = self._asking.collector if asked.pooling is None else self._asking.vector
        return make(asked, self._asking.id())

    def _all(
        self, asked: Sequence[Asked], make: Callable[[Asked, str], Answers[Output]], use_tqdm: bool
    ) -> list[Output]:
        """Runs what `make` makes of every prompt to its end; outputs in the prompts' order."""
        results: dict[str, Output] = {}
        places: list[str] = []  # ids, in the prompts' order

        def collectors() -> Iterator[Answers[Output]]:
            for one in asked:
                places.append(self._asking.id())
                yield make(one, places[-1])

        engine = self.loaded.engine
        with Progress(len(asked), use_tqdm, engine.metrics.produced) as bar:

            def tell(news: Sequence[Answers[Output]]) -> None:
                bar.show(engine.metrics.produced)
                for collector in news:
                    if collector.finished:
                        results[collector.request.id] = collector.output()
                        bar.update()

            self._loop.finish(collectors(), tell)
        return [results[id] for id in places]

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, wanted: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        return one_each("sampling_params", given, SamplingParams, wanted)
