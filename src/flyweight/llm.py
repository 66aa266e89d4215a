"""Offline use: one process, no extra thread, so a breakpoint works.  Names and results are vLLM's.

Invariant: every request added is finished or aborted before `generate` or `stream` returns or raises, so an `LLM` can be
used again after Ctrl-C.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from random import Random, SystemRandom
from typing import Any

from tqdm import tqdm

from flyweight.build import Loaded, Notify, build
from flyweight.collect import Collector
from flyweight.config import Settings
from flyweight.errors import RequestError
from flyweight.results import RequestOutput
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import Request, SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class LLM:
    """A model with its engine.

    `model` is a path (a .gguf file or a Hugging Face directory); None is the story model inside the package.  Further
    keywords are the fields of `config.Settings`: max_model_len, memory_limit, threads, activations, kv_dtype, ...
    Raises `ConfigError` or `CheckpointError`, each one line.
    """

    def __init__(
        self, model: str | None = None, *, notify: Notify | None = None, settings: Settings | None = None, **keywords: Any
    ) -> None:
        self.settings = settings or Settings.of(model=model, **keywords)
        self.loaded: Loaded = build(self.settings, notify)
        self._ids = count()
        self._seeds = SystemRandom() if self.settings.seed is None else Random(self.settings.seed)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The checkpoint's generation_config.json, where it has an opinion; vLLM's defaults elsewhere."""
        return SamplingParams(**self.generation_defaults())

    def generation_defaults(self) -> dict[str, Any]:
        """The sampling options generation_config.json sets, under `SamplingParams`' names."""
        theirs = self.loaded.generation
        given = {k: v for k, v in theirs.items() if k in DEFAULTS and v is not None}
        if theirs.get("do_sample") is False:
            given["temperature"] = 0.0
        if theirs.get("max_new_tokens"):
            given["max_tokens"] = theirs["max_new_tokens"]
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
        """Completes every prompt; results come in the prompts' order.  Raises `RequestError` before any work if one of
        them cannot be served.  `salt` keeps this call's prefix-cache entries apart.
        """
        many = _listed(prompts)
        params = self._params(sampling_params, len(many))
        extra = {"salt": salt, "priority": priority}
        collectors = [self._collector(p, s, extra) for p, s in zip(many, params, strict=True)]
        with tqdm(total=len(many), disable=not use_tqdm, unit="prompt", dynamic_ncols=True) as bar:
            for done in self._run(collectors):
                if done.finished:
                    bar.update()
        return [c.output() for c in collectors]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Yields the result as it grows; `outputs[i].delta` is what is new."""
        (params,) = self._params(sampling_params, 1)
        collector = self._collector(prompt, params, {})
        for changed in self._run([collector]):
            yield changed.output()

    def _run(self, collectors: Sequence[Collector]) -> Iterator[Collector]:
        """Adds all, steps until none is left, yields each collector an event reached; aborts what is left on the way out."""
        engine = self.loaded.engine
        by_id = {c.request.id: c for c in collectors}
        try:
            for c in collectors:
                engine.add(c.request)
            while any(not c.finished for c in collectors) and engine.busy:
                for event in engine.step():
                    collector = by_id[event.id]
                    if collector.feed(event):
                        engine.abort(event.id, event.index)
                    yield collector
        finally:
            for c in collectors:
                if not c.finished:
                    engine.abort(c.request.id)

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, wanted: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * wanted
        if len(given) != wanted:
            raise RequestError(
                f"sampling_params has {len(given)} entries for {wanted} prompts; give one, or one each",
                "sampling_params",
            )
        return given

    def _collector(self, prompt: Prompt, params: SamplingParams, extra: Mapping[str, Any]) -> Collector:
        text, tokens = self._tokens(prompt)
        self._check(tokens, params)
        room = self.loaded.limits.max_model_len - len(tokens)
        ends = frozenset() if params.ignore_eos else self.loaded.stop_ids
        request = Request(
            id=f"request-{next(self._ids)}",
            tokens=tuple(tokens),
            params=params,
            stop_ids=ends | frozenset(params.stop_token_ids),
            max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64,
            arrival=time.monotonic(),
            **extra,
        )
        return Collector(request, self.tokenizer, text)

    def _tokens(self, prompt: Prompt) -> tuple[str | None, Sequence[int]]:
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return None, list(prompt["prompt_token_ids"])
            prompt = prompt.get("prompt")  # type: ignore[assignment]
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt, add_special=True)
        if isinstance(prompt, Sequence):
            return None, list(prompt)
        raise RequestError(f"prompt = {prompt!r} is neither text nor token ids", "prompt")

    def _check(self, tokens: Sequence[int], params: SamplingParams) -> None:
        vocab, longest = self.loaded.spec.vocab, self.loaded.limits.max_model_len
        if not tokens:
            raise RequestError("prompt is empty and this vocabulary has no BOS token; give at least one token", "prompt")
        if len(tokens) >= longest:
            raise RequestError(
                f"prompt has {len(tokens)} tokens; allowed: 1 to {longest - 1} "
                f"(max_model_len = {longest}, one is left for the answer)",
                "prompt",
            )
        for name, ids in (
            ("prompt", tokens),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias),
        ):
            bad = next((i for i in ids if not _is_id(i, vocab)), None)
            if bad is not None:
                raise RequestError(f"{name}: token id {bad!r} is out of range; allowed: 0 to {vocab - 1}", name)


def _is_id(value: object, vocab: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text, a mapping, or a list of ids) or several."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many: list[Any] = list(prompts)
    return [many] if many and all(isinstance(x, int) for x in many) else many


