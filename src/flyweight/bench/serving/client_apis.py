"""The APIs of a load: the body of a request, and what an event of its answer holds.

Invariant: reading an event costs about as much as parsing it: its shape is known beforehand, and
what no figure needs is skipped.  A chunk counts when it has a part of the answer: text, or a
token that shows none yet; one that only opens or closes an answer does not.
"""

from abc import abstractmethod
from typing import Any, Protocol

import msgspec

from flyweight.bench.serving.requests import LoadRequest, RequestManner, StreamedAnswer
from flyweight.errors import ConfigError, nearest
from flyweight.validation.untrusted import one_line, shown

DONE = b"[DONE]"


class UsageEvent(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class DeltaEvent(msgspec.Struct, gc=False):
    """A null is as good as absent, here as elsewhere: some servers write all their fields."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


NOTHING = DeltaEvent()


class CompletionEventChoice(msgspec.Struct, gc=False):
    text: str | None = None
    finish_reason: str | None = None


class ChatEventChoice(msgspec.Struct, gc=False):
    delta: DeltaEvent | None = None
    finish_reason: str | None = None


class TextEvent(msgspec.Struct):
    choices: list[CompletionEventChoice] | None = None
    usage: UsageEvent | None = None
    error: msgspec.Raw = msgspec.Raw()


class ChatEvent(msgspec.Struct):
    choices: list[ChatEventChoice] | None = None
    usage: UsageEvent | None = None
    error: msgspec.Raw = msgspec.Raw()


class LlamaEvent(msgspec.Struct):
    content: str = ""
    stop: bool = False
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    error: msgspec.Raw = msgspec.Raw()


class ClientApi(Protocol):
    """How requests for one kind of server are made, and how its events are read."""

    path: str
    takes_ids: bool

    @abstractmethod
    def make_body(
        self, request: LoadRequest, manner: RequestManner, turn: int
    ) -> dict[str, Any]: ...

    @abstractmethod
    def read(self, payload: bytes, now: float, answer: StreamedAnswer) -> None:
        """Notes an event of a stream.  Raises `msgspec.DecodeError`."""


class CompletionsApi:
    """OpenAI's /v1/completions, vLLM's too."""

    path, takes_ids = "/v1/completions", True

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(TextEvent).decode

    def make_body(self, request: LoadRequest, manner: RequestManner, turn: int) -> dict[str, Any]:
        found: dict[str, Any] = {**_make_common_body(manner, turn), "prompt": request.prompt}
        found["max_tokens"] = request.output
        if manner.logprobs is not None:
            found["logprobs"] = manner.logprobs
        return {**found, **manner.extra}

    def read(self, payload: bytes, now: float, answer: StreamedAnswer) -> None:
        if payload == DONE:
            answer.complete = True
            return
        event = self._decode(payload)
        for choice in event.choices or ():
            if choice.text or choice.finish_reason is None:
                answer.times.append(now)
                answer.texts.append(choice.text or "")
        _record_end(event, answer)


class ChatApi:
    """OpenAI's /v1/chat/completions: the prompt is one message of a user."""

    path, takes_ids = "/v1/chat/completions", False

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(ChatEvent).decode

    def make_body(self, request: LoadRequest, manner: RequestManner, turn: int) -> dict[str, Any]:
        found: dict[str, Any] = _make_common_body(manner, turn)
        found["messages"] = [{"role": "user", "content": request.prompt}]
        found["max_completion_tokens"] = request.output
        if manner.logprobs is not None:
            found |= {"logprobs": True, "top_logprobs": manner.logprobs}
        return {**found, **manner.extra}

    def read(self, payload: bytes, now: float, answer: StreamedAnswer) -> None:
        if payload == DONE:
            answer.complete = True
            return
        event = self._decode(payload)
        for choice in event.choices or ():
            delta = choice.delta or NOTHING
            text = delta.content or delta.reasoning or delta.reasoning_content or ""
            silent = choice.finish_reason is None and delta.role is None
            if text or delta.tool_calls or silent:
                answer.times.append(now)
                answer.texts.append(text)
        _record_end(event, answer)


class LlamaApi:
    """llama.cpp's own /completion."""

    path, takes_ids = "/completion", True

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(LlamaEvent).decode

    def make_body(self, request: LoadRequest, manner: RequestManner, turn: int) -> dict[str, Any]:
        found = {"prompt": request.prompt, "n_predict": request.output, "stream": True}
        sampling = dict(manner.sampling)
        if "repetition_penalty" in sampling:
            sampling["repeat_penalty"] = sampling.pop("repetition_penalty")
        if manner.ignore_eos:
            found["ignore_eos"] = True
        if manner.logprobs is not None:
            found["n_probs"] = manner.logprobs
        return {**found, **sampling, **manner.extra}

    def read(self, payload: bytes, now: float, answer: StreamedAnswer) -> None:
        if payload == DONE:
            return
        event = self._decode(payload)
        if event.error and _record_error(event.error, answer):
            return
        if event.content or not event.stop:
            answer.times.append(now)
            answer.texts.append(event.content)
        if event.stop:
            answer.complete = True
            answer.counted = event.tokens_predicted
            answer.prompt_counted = event.tokens_evaluated


BACKENDS: dict[str, type[CompletionsApi] | type[ChatApi] | type[LlamaApi]] = {
    "openai": CompletionsApi,
    "vllm": CompletionsApi,
    "openai-chat": ChatApi,
    "llama.cpp": LlamaApi,
}


def find_api(backend: str) -> ClientApi:
    """Raises `ConfigError` for a name that is not known."""
    if backend not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise ConfigError(f"backend = {backend!r}; allowed: {known}{nearest(backend, BACKENDS)}")
    return BACKENDS[backend]()


def read_reason(body: bytes) -> str:
    """The message in an error's body, of whichever shape, fit for one line."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return one_line(body.decode("utf-8", "replace"))
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return one_line(found) if isinstance(found, str) else shown(found, 200)


def _make_common_body(manner: RequestManner, turn: int) -> dict[str, Any]:
    found: dict[str, Any] = {"model": manner.models[turn % len(manner.models)], "stream": True}
    found["stream_options"] = {"include_usage": True}
    if manner.ignore_eos:
        found["ignore_eos"] = True
    return {**found, **manner.sampling}


def _record_end(event: TextEvent | ChatEvent, answer: StreamedAnswer) -> None:
    """The server's counts, and its error."""
    if event.usage is not None:
        answer.counted = event.usage.completion_tokens
        answer.prompt_counted = event.usage.prompt_tokens
    if event.error:
        _record_error(event.error, answer)


def _record_error(error: msgspec.Raw, answer: StreamedAnswer) -> bool:
    """Whether an event reports an error; null is none."""
    found = bytes(error)
    if found == b"null":
        return False
    answer.fail(read_reason(found))
    return True
