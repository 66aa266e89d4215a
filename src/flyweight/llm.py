"""Offline use: one process, no extra thread, so a breakpoint works.  Names and results are vLLM's.

Invariant: every request is finished or aborted before a call returns or raises; Ctrl-C falls
between steps, so an `LLM` can be used again after it.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, Never, Self, Unpack, cast

from flyweight.arguments.engine import choose_engine
from flyweight.arguments.keywords import EngineOptions
from flyweight.build import LoadedModel, build
from flyweight.describe import LoadListener
from flyweight.driver.background import Background, list_tasks
from flyweight.driver.effective import list_effective, list_metrics
from flyweight.driver.loop import BatchCollector, Loop, Output
from flyweight.driver.progress import CallProgress, Progress
from flyweight.errors import RequestError
from flyweight.inputs import LoRARequest, LoRARequests
from flyweight.outputs import (
    BeamSearchOutput,
    Counter,
    EmbeddingRequestOutput,
    Gauge,
    RequestOutput,
)
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.requests.collector import Collector, VectorCollector
from flyweight.requests.preparing import (
    Message,
    Params,
    RequestChecks,
    RequestPreparer,
    list_special_tokens,
    read_generation_options,
    render_conversation,
)
from flyweight.requests.pretrained import PreTrainedTokenizer
from flyweight.requests.prompts import (
    ContextFactory,
    PreparedPrompt,
    Prompt,
    add_salt,
    list_prompts,
    spread_options,
)
from flyweight.sampling.grammar import TrialCompiler
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import SamplingParams
from flyweight.validation.ranges import check_kind


class LLM:
    """A model with its engine.

    `model` is a path (a .gguf file or a Hugging Face directory) or a name on the Hugging Face Hub
    (`org/name`, `org/name:Q4_K_M`); None is the story model inside the package.  Further keywords
    are those of `EngineOptions`: the fields of `config.Settings` (memory_limit, threads,
    activations, ...) and vLLM's arguments (gpu_memory_utilization, dtype, ...).  Raises
    `ConfigError` or `CheckpointError`, each one line.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        notify: LoadListener | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self._loaded: LoadedModel | None = None
        self._chosen = choose_engine({"model": model, **options})
        self.settings = self._chosen.settings
        patience = CallProgress()
        try:
            self._loaded = build(self.settings, notify or patience)
        finally:
            patience.stop()
        spec, limits = self.loaded.spec, self.loaded.limits
        adapters = tuple(self.settings.adapters)
        facts = RequestChecks(
            spec.vocab, limits.max_model_len, limits.scored, self.loaded.stop_ids, adapters,
            self.settings.max_logprobs,
        )  # fmt: skip
        judge = TrialCompiler(lambda: list_special_tokens(self.tokenizer))
        self._reader = RequestPreparer(self.tokenizer, facts, self.settings.seed, judge)
        self.background = Background(list_tasks(self.loaded))
        self.loop = Loop(self.loaded.engine, limits, self.background)
        self.read_generation_defaults()  # a bad file is refused now, not at the first request

    def __repr__(self) -> str:
        model = str(self.settings.model or "stories")
        if self._loaded is None:
            return f"LLM({model!r}, closed)"
        spec, limits = self.loaded.spec, self.loaded.limits
        return f"LLM({model!r}, family={spec.family!r}, max_model_len={limits.max_model_len})"

    def __enter__(self) -> Self:
        self.loaded  # noqa: B018  (not once it is closed)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the weights and the K/V memory; what is under way ends with the reason "abort".  A
        second call does nothing.
        """
        if self._loaded is not None:
            self._loaded = None
            self.loop.close()
            del self.loop, self.background

    @property
    def loaded(self) -> LoadedModel:
        """The engine and what it was made of.  Raises `RequestError` once it is closed."""
        if self._loaded is None:
            raise RequestError("this LLM is closed; make another")
        return self._loaded

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    def get_tokenizer(self) -> PreTrainedTokenizer:
        """The model's tokenizer under the names of transformers' tokenizers."""
        return PreTrainedTokenizer(self.tokenizer)

    @property
    def effective(self) -> list[dict[str, str]]:
        """Rows of feature, requested, active and why, for decisions and given arguments."""
        return list_effective(self._chosen, self.loaded)

    def get_default_sampling_params(self) -> SamplingParams:
        """The checkpoint's generation_config.json, where it has an opinion; vLLM's defaults
        elsewhere.
        """
        return SamplingParams(**self.read_generation_defaults())

    def read_generation_defaults(self) -> dict[str, Any]:
        """The sampling options generation_config.json and `override_generation_config` set, under
        `SamplingParams`' names.
        """
        theirs = self.loaded.generation if self._chosen.model_defaults else {}
        found = {**read_generation_options(theirs), **self._chosen.sampling}
        return {name: value for name, value in found.items() if value is not None}

    def stats(self) -> dict[str, Any]:
        """The engine's counters and the state of its pool, by name."""
        now = asdict(self.loaded.engine.stats())
        return {**now.pop("totals"), **now}

    def get_metrics(self) -> list[Counter | Gauge]:
        """The same as a list of vLLM's metrics, under vLLM's names where it has them."""
        return list_metrics(self.loaded.engine)

    def reset_prefix_cache(self) -> bool:
        """Forgets what was computed: the next prompts find nothing.  Answers are the same."""
        self.loaded.engine.reset_prefix_cache()
        return True

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        salt: str = "",
        priority: int | Sequence[int] | None = 0,
        adapter: str | Sequence[str] = "",
        lora_request: LoRARequests = None,
        return_cache_explanation: bool = False,
    ) -> list[RequestOutput]:
        """Completes every prompt: text, token ids, or {"prompt": ..., "prompt_token_ids": ...}.

        Results come in the prompts' order.  Raises `RequestError` before any work if one of them
        cannot be served.  `salt` keeps this call's prefix-cache entries apart; lower `priority`
        goes first.  `adapter` names one of `Settings.adapters`, `lora_request` does so in vLLM's
        way.  Each but `salt` is one value for all prompts, or a list with one for each.  With
        `return_cache_explanation` results say what was found in the prefix cache, and why not more.
        """
        many = list_prompts(prompts)
        params = self._spread_params(sampling_params, len(many))
        lanes = ContextFactory(salt, priority, adapter, lora_request, return_cache_explanation)
        inputs = self._prepare(many, params, lanes)
        return self._run_all(inputs, self._reader.make_collector, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        salt: str = "",
        priority: int | Sequence[int] | None = 0,
        adapter: str | Sequence[str] = "",
        lora_request: LoRARequests = None,
    ) -> list[EmbeddingRequestOutput]:
        """One vector a prompt: hidden states after the final norm, pooled."""
        many = list_prompts(prompts)
        params = spread_options("pooling_params", pooling_params, PoolingParams, len(many))
        inputs = self._prepare(many, params, ContextFactory(salt, priority, adapter, lora_request))
        return self._run_all(inputs, self._reader.make_vector, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams] | None = None,
        *,
        use_tqdm: bool = True,
        salt: str = "",
        priority: int | Sequence[int] | None = 0,
        adapter: str | Sequence[str] = "",
        lora_request: LoRARequests = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of every prompt that `beam_width` beams find, best first;
        `sequences` of a result are the same as vLLM has them.
        """
        many = list_prompts(prompts)
        searches = spread_options("params", params, BeamSearchParams, len(many))
        lanes = ContextFactory(salt, priority, adapter, lora_request)
        inputs = self._prepare(many, searches, lanes)
        found = self._run_all(inputs, self._reader.make_collector, use_tqdm)
        return cast("list[BeamSearchOutput]", found)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        chat_template_content_format: Literal["auto"] = "auto",
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        salt: str = "",
        priority: int | Sequence[int] | None = 0,
        adapter: str | Sequence[str] = "",
        lora_request: LoRARequests = None,
        return_cache_explanation: bool = False,
        **unknown: Never,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, through the model's chat template (without one, the
        messages line by line); the keywords before `salt` are `render_conversation`'s, the others
        `generate`'s.
        """
        name, form = "chat_template_content_format", chat_template_content_format
        check_kind(form == "auto", name, form, "auto (the template says what it takes)")
        several = bool(messages) and not isinstance(messages[0], Mapping | str)
        conversations: Any = messages if several else [messages]
        prompts = [
            self.conversation(
                conversation,
                chat_template=chat_template,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
                **unknown,
            )
            for conversation in conversations
        ]
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            salt=salt,
            priority=priority,
            adapter=adapter,
            lora_request=lora_request,
            return_cache_explanation=return_cache_explanation,
        )

    def conversation(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> dict[str, Any]:
        """The prompt a chat template makes of messages: the model's, or the one that is given as
        text or by name.  `chat_template_kwargs` are the template's own switches.
        """
        given = {
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        from flyweight.text.messages import merge_options  # Jinja is for chats alone

        options = {name: value for name, value in given.items() if value is not None}
        own = merge_options({**options, **unknown}, chat_template_kwargs)
        return render_conversation(
            self.tokenizer, messages, chat_template=chat_template, tools=tools, **own
        )

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        salt: str = "",
        priority: int = 0,
        adapter: str = "",
        lora_request: LoRARequest | None = None,
        return_cache_explanation: bool = False,
    ) -> Generator[RequestOutput]:
        """Yields the result as it grows; `outputs[i].delta` is what is new.  Closing it early ends
        the request.  A bad prompt is refused at once, the clock starts with the first `next`.
        """
        (params,) = self._spread_params(sampling_params, 1)
        if params.best_of not in (None, params.n):
            raise RequestError(
                "is not supported here: the best choices are known only at the end",
                "best_of",
                value=params.best_of,
                hint=f"nearest valid: best_of = {params.n}, or generate",
            )
        reader = self._reader
        lanes = ContextFactory(salt, priority, adapter, lora_request, return_cache_explanation)
        (inputs,) = self._prepare([prompt], [params], lanes)
        id = reader.make_id()
        runs = self.loop.run(reader.make_collector(inputs, id, time.monotonic()) for _ in range(1))
        return (collector.output() for batch in runs for collector in batch if collector.readable)

    def make_collector(
        self,
        prompt: Prompt,
        params: Params | None = None,
        lanes: ContextFactory | None = None,
        id: str | None = None,
    ) -> "Collector | VectorCollector":
        """A checked request with what gathers its answer, for a front that steps the engine itself.
        Raises `RequestError`.
        """
        wanted = self._spread_params(None, 1)[0] if params is None else params
        (inputs,) = self._prepare([prompt], [wanted], lanes or ContextFactory())
        make = self._reader.make_collector if inputs.pooling is None else self._reader.make_vector
        return make(inputs, self._reader.make_id() if id is None else id)

    def _prepare(
        self, prompts: Sequence[Prompt], params: Sequence[Params], lanes: ContextFactory
    ) -> list[PreparedPrompt]:
        """Checked prompts, each with a copy of its options and its lane.  Raises `RequestError`."""
        copies = {id(p): p.clone() if isinstance(p, SamplingParams) else p for p in params}
        self.loaded  # noqa: B018  (not once it is closed)
        each = lanes.make_each(len(prompts), self.settings.adapters)
        if not self._chosen.priorities and any(lane.priority for lane in each):
            raise RequestError("cannot be combined with scheduling_policy = 'fcfs'", "priority")
        found = zip(prompts, params, each, strict=True)
        return [
            self._reader.prepare(one, copies[id(own)], add_salt(one, lane))
            for one, own, lane in found
        ]

    def _run_all(
        self,
        inputs: Sequence[PreparedPrompt],
        make: Callable[[PreparedPrompt, str], BatchCollector[Output]],
        use_tqdm: bool,
    ) -> list[Output]:
        """Runs what `make` makes of every prompt to its end; outputs in the prompts' order."""
        results: dict[str, Output] = {}
        places: list[str] = []  # ids, in the prompts' order

        def collectors() -> Iterator[BatchCollector[Output]]:
            for one in inputs:
                places.append(self._reader.make_id())
                yield make(one, places[-1])

        engine = self.loaded.engine
        with Progress(len(inputs), use_tqdm, engine.metrics.produced) as bar:

            def report(batch: Sequence[BatchCollector[Output]]) -> None:
                bar.show(engine.metrics.produced)
                for collector in batch:
                    if collector.finished:
                        results[collector.request.id] = collector.output()
                        bar.update()

            self.loop.finish(collectors(), report)
        return [results[id] for id in places]

    def _spread_params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, wanted: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        return spread_options("sampling_params", given, SamplingParams, wanted)
