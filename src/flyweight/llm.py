"""Offline use: one process, no extra thread, so a breakpoint works.  Names and results are vLLM's.

Invariant: every request added is finished or aborted before `generate`, `chat` or `stream` returns
or raises, and Ctrl-C falls between steps, so an `LLM` can be used again after it.
"""

import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from operator import index
from random import Random, SystemRandom
from threading import current_thread, main_thread
from typing import Any

from tqdm import tqdm

from flyweight.build import Loaded, Notify, build
from flyweight.collect import Collector
from flyweight.config import Settings
from flyweight.errors import CheckpointError, RequestError
from flyweight.results import RequestOutput
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import Request, SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]
DEFAULTS = {  # of generation_config.json, as vLLM reads it
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
BAR_AFTER = 1.0  # seconds; shorter work shows no progress bar


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
        self._ids = count()
        self._live: dict[str, Collector] = {}
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
        many = _listed(prompts)
        params = self._params(sampling_params, len(many))
        extra = {"salt": salt, "priority": priority}
        collectors = [self._collector(p, s, extra) for p, s in zip(many, params, strict=True)]
        shown = None if use_tqdm else True  # None: where there is a terminal
        with tqdm(
            total=len(many), unit="prompt", disable=shown, delay=BAR_AFTER, dynamic_ncols=True
        ) as bar:
            began, tokens = time.monotonic(), 0
            for changed in self._run(collectors):
                if changed.finished:
                    tokens += changed.produced
                    rate = tokens / (time.monotonic() - began)
                    bar.set_postfix_str(f"{rate:.0f} tokens/s", refresh=False)
                    bar.update()
        return [c.output() for c in collectors]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, through the model's chat template."""
        several = bool(messages) and not isinstance(messages[0], Mapping | str)
        talks: Any = messages if several else [messages]
        prompts = [self.conversation(talk, **(chat_template_kwargs or {})) for talk in talks]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

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
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput]:
        """Yields the result as it grows; `outputs[i].delta` is what is new.  Closing it early ends
        the request.
        """
        (params,) = self._params(sampling_params, 1)
        collector = self._collector(prompt, params, {})
        return (changed.output() for changed in self._run([collector]))

    def _run(self, collectors: Sequence[Collector]) -> Iterator[Collector]:
        """Adds all, steps until none is left, yields each one that changed, once a step; aborts
        what is left on the way out.  Several may run at once: each step feeds them all.
        """
        engine = self.loaded.engine
        try:
            with whole():
                for c in collectors:
                    engine.add(c.request)
                    self._live[c.request.id] = c
            left = dict.fromkeys(collectors)
            while left:
                changed = [c for c in left if c.changed]
                if not changed:  # else a step of another caller already brought something
                    with whole():
                        self._step()
                    changed = [c for c in left if c.changed]
                for c in changed:
                    c.changed = False
                    if c.finished:
                        del left[c]
                    yield c
        finally:
            with whole():
                for c in collectors:
                    self._live.pop(c.request.id, None)
                    engine.abort(c.request.id)

    def _step(self) -> None:
        """One step; feeds every live collector."""
        engine = self.loaded.engine
        for event in engine.step():
            if self._live[event.id].feed(event):
                engine.abort(event.id, event.index)

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

    def _collector(
        self, prompt: Prompt, params: SamplingParams, extra: Mapping[str, Any]
    ) -> Collector:
        text, tokens = self._tokens(prompt)
        self._check(tokens, params)
        room = self.loaded.limits.max_model_len - len(tokens)
        ends = frozenset() if params.ignore_eos else self.loaded.stop_ids
        request = Request(
            id=f"request-{next(self._ids)}",
            tokens=tokens,
            params=params,
            stop_ids=ends | frozenset(params.stop_token_ids),
            max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64,
            arrival=time.monotonic(),
            **extra,
        )
        return Collector(request, self.tokenizer, text)

    def _tokens(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """The prompt as text, where it has any, and as ids."""
        text: object = prompt
        if isinstance(prompt, Mapping):
            text = prompt.get("prompt")
            if prompt.get("prompt_token_ids") is not None:
                return (text if isinstance(text, str) else None), _ids(prompt["prompt_token_ids"])
        if isinstance(text, str):
            return text, tuple(self.tokenizer.encode(text, add_special=True))
        if isinstance(prompt, Mapping):
            raise RequestError(
                f"prompt has the keys {sorted(map(str, prompt))}; needed: prompt (text) "
                "or prompt_token_ids",
                "prompt",
            )
        return None, _ids(prompt)

    def _check(self, tokens: Sequence[int], params: SamplingParams) -> None:
        vocab, longest = self.loaded.spec.vocab, self.loaded.limits.max_model_len
        if not tokens:
            raise RequestError(
                "prompt is empty and nothing is put before it (this vocabulary adds no BOS token); "
                "allowed: 1 token or more",
                "prompt",
            )
        if len(tokens) >= longest:
            raise RequestError(
                f"prompt has {len(tokens)} tokens; allowed: 1 to {longest - 1} "
                f"(max_model_len = {longest}, and one is left for the answer)",
                "prompt",
            )
        for name, ids in (
            ("prompt", tokens),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias),
        ):
            bad = next((i for i in ids if not 0 <= i < vocab), None)
            if bad is not None:
                raise RequestError(
                    f"{name}: token id {bad} is out of range; allowed: 0 to {vocab - 1}", name
                )


@contextmanager
def whole() -> Iterator[None]:
    """Holds Ctrl-C back until the block is done, so that it never falls inside a step; pressed
    twice, it falls at once.  Leaves a program's own way with signals alone.
    """
    mine = signal.default_int_handler
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not mine:
        yield
        return
    pressed: list[int] = []

    def note(number: int, frame: object) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, mine)
    if pressed:
        raise KeyboardInterrupt


def _ids(given: object) -> tuple[int, ...]:
    """Token ids from whatever counts as a list of whole numbers."""
    try:
        if isinstance(given, str | bytes):
            raise TypeError
        return tuple(index(i) for i in given)  # type: ignore[attr-defined]
    except TypeError:
        raise RequestError(
            f"prompt = {str(given)[:80]!r} is neither text nor a list of token ids", "prompt"
        ) from None


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text, a mapping, or a list of ids) or several."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise RequestError(
            f"prompts = {str(prompts)[:80]!r}; allowed: text, token ids, a mapping, "
            "or a list of these",
            "prompts",
        )
    many: list[Any] = list(prompts)
    return [many] if many and all(isinstance(x, int) for x in many) else many
