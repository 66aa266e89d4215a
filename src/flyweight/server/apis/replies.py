"""The types of replies, of which the OpenAPI document is made.

Invariant: a reply has at least these fields, with these types; it may have more.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

Object = dict[str, Any]


class PromptDetails(TypedDict):
    cached_tokens: int


class UsageReply(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class AttemptsReply(TypedDict):
    attempts: int
    valid: bool | None


class ChatReplyChoice(TypedDict):
    index: int
    message: Object
    logprobs: Object | None
    finish_reason: Literal["stop", "length", "tool_calls", "abort", "repetition"]
    stop_reason: str | int | None
    structured_output: NotRequired[AttemptsReply]
    token_ids: NotRequired[list[int]]


class ChatReply(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: None
    service_tier: None
    choices: list[ChatReplyChoice]
    usage: UsageReply
    metrics: Object
    prompt_token_ids: NotRequired[list[int]]
    prompt_text: NotRequired[str]
    prompt_logprobs: NotRequired[list[Object | None]]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: Object | None
    finish_reason: Literal["stop", "length", "abort", "repetition"]
    stop_reason: str | int | None
    structured_output: NotRequired[AttemptsReply]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[Object | None]]


class CompletionReply(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    service_tier: None
    choices: list[CompletionChoice]
    usage: UsageReply
    metrics: Object


class ResponseReply(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[Object]
    structured_output: NotRequired[AttemptsReply]
    usage: Object
    metrics: Object


class Vector(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingReply(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Vector]
    usage: Object


class MessageReply(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Object]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: Object
    metrics: Object


class CountReply(TypedDict):
    input_tokens: int


class GenerateReply(TypedDict):
    text: str
    tokens: int
    usage: UsageReply
    metrics: Object


class LlamaReply(TypedDict):
    index: int
    content: str
    tokens: list[int]
    stop: Literal[True]
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    model: str
    prompt: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: Literal[False]
    generation_settings: Object
    timings: Object
    metrics: Object


class PropsReply(TypedDict):
    default_generation_settings: Object
    total_slots: int
    model_path: str
    model_alias: str
    modalities: dict[str, bool]
    chat_template: str
    bos_token: str | None
    eos_token: str | None
    build_info: str
    is_sleeping: bool


class TokenizerReply(TypedDict):
    tokenizer_class: str
    model_max_length: int
    vocab_size: int
    add_bos_token: bool
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


class TokenPieceReply(TypedDict):
    id: int
    piece: str | list[int]


class TokenizeReply(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int] | list[TokenPieceReply]
    token_strs: NotRequired[list[str]]


class DetokenizeReply(TypedDict):
    prompt: str
    content: str


class TemplateReply(TypedDict):
    prompt: str


class OllamaReply(TypedDict):
    model: str
    created_at: str
    done: Literal[True]
    done_reason: Literal["stop", "length", "load", "abort"]
    message: NotRequired[Object]
    response: NotRequired[str]
    total_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    eval_count: NotRequired[int]
    cached_tokens: NotRequired[int]
    metrics: NotRequired[Object]


class EmbedReply(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    cached_tokens: NotRequired[int]
    metrics: NotRequired[Object]


class OneVectorReply(TypedDict):
    embedding: list[float]
    cached_tokens: NotRequired[int]
    metrics: NotRequired[Object]


class TagsReply(TypedDict):
    models: list[Object]


class PullReply(TypedDict):
    status: str


class ShowReply(TypedDict):
    template: str
    details: Object
    model_info: Object
    capabilities: list[str]


class QualityReply(TypedDict):
    perplexity: float
    perplexity_error: NotRequired[float]
    kld_mean: float
    kld_mean_error: NotRequired[float]
    kld_median: float
    kld_p99: float
    kld_p99_9: float
    kld_max: float
    top1_agreement: float
    top1_agreement_error: NotRequired[float]
    tokens: int
    context: int
    stride: int
    text: str
    text_sha256: str
    against: str
    date: str
    long_context: NotRequired[Object]
    json_valid: NotRequired[Object]
    tool_call_valid: NotRequired[Object]
    kv_cache: NotRequired[Object]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    permission: list[Object]
    quality: QualityReply | None
    state: Literal["loaded", "loading", "unloaded", "failed"]
    loading_seconds: float | None
    failure: str | None


class ModelsReply(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class ReloadReply(TypedDict):
    added: list[str]
    removed: list[str]
    changed: list[str]


class StatusReply(TypedDict):
    status: Literal["ok"]
    failed: NotRequired[list[str]]


class LoadReply(TypedDict):
    server_load: int


class VersionReply(TypedDict):
    version: str


class OpenAIError(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIRefusal(TypedDict):
    error: OpenAIError


class AnthropicError(TypedDict):
    type: str
    message: str


class AnthropicRefusal(TypedDict):
    type: Literal["error"]
    error: AnthropicError


class OllamaRefusal(TypedDict):
    error: str
