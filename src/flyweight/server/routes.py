"""Every route there is, with the body it takes.

Invariant: what the server answers, its OpenAPI document describes: both are made from `ROUTES`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.api import (
    about,
    chat,
    chatbody,
    completions,
    embeddings,
    generate,
    llama,
    messages,
    messagewriter,
    ollama,
    ollama_about,
    responses,
    tokens,
)
from flyweight.server.errors import HttpError
from flyweight.server.front import Front

Handler = Callable[[Front, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A route: what it answers to, the body it takes, and the shape its dialect gives errors."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[BaseModel] | None = None
    errors: Callable[[HttpError], dict[str, Any]] = HttpError.body


ROUTES = (
    Entry("POST", "/v1/chat/completions", chat.chat, "Answer a conversation", chatbody.ChatBody),
    Entry(
        "POST",
        "/v1/completions",
        completions.completions,
        "Continue prompts",
        completions.CompletionBody,
    ),
    Entry(
        "POST",
        "/v1/embeddings",
        embeddings.embeddings,
        "A vector for each prompt",
        embeddings.EmbeddingBody,
    ),
    Entry("POST", "/generate", generate.generate, "Continue one prompt", generate.GenerateBody),
    Entry("POST", "/completion", llama.completion, "llama-server's continuation", llama.LlamaBody),
    Entry("POST", "/tokenize", tokens.tokenize, "Text or messages to ids", tokens.TokenizeBody),
    Entry("POST", "/detokenize", tokens.detokenize, "Ids to text", tokens.DetokenizeBody),
    Entry("POST", "/apply-template", tokens.apply_template, "Messages to text", chatbody.ChatBody),
    Entry(
        "POST",
        "/v1/chat/completions/input_tokens",
        tokens.input_tokens,
        "How long a conversation is",
        chatbody.ChatBody,
    ),
    Entry(
        "POST",
        "/v1/responses",
        responses.responses,
        "A response that is not kept",
        responses.ResponseBody,
    ),
    Entry(
        "POST",
        "/v1/messages",
        messages.messages,
        "Anthropic's answer to a conversation",
        messages.MessagesBody,
        messagewriter.error_of,
    ),
    Entry(
        "POST",
        "/v1/messages/count_tokens",
        messages.count_tokens,
        "How long a conversation is, in Anthropic's form",
        messages.CountBody,
        messagewriter.error_of,
    ),
    Entry("GET", "/v1/models", about.models, "The models that are served"),
    Entry("GET", "/v1/models/{model:path}", about.model, "One of the models"),
    Entry(
        "POST",
        "/api/chat",
        ollama.chat,
        "Ollama's answer to a conversation",
        ollama.OllamaChatBody,
        ollama.error_of,
    ),
    Entry(
        "POST",
        "/api/generate",
        ollama.generate,
        "Ollama's answer to a prompt",
        ollama.OllamaGenerateBody,
        ollama.error_of,
    ),
    Entry(
        "POST",
        "/api/embed",
        ollama_about.embed,
        "Ollama's vectors",
        ollama_about.EmbedBody,
        ollama.error_of,
    ),
    Entry("GET", "/api/tags", ollama_about.tags, "Ollama's list of models", None, ollama.error_of),
    Entry(
        "POST",
        "/api/show",
        ollama_about.show,
        "One of the models, as Ollama shows it",
        ollama_about.ShowBody,
        ollama.error_of,
    ),
    Entry(
        "GET",
        "/api/version",
        ollama_about.version,
        "The version, as Ollama tells it",
        None,
        ollama.error_of,
    ),
    Entry("GET", "/health", about.health, "Whether the engine lives and gets on"),
    Entry("GET", "/ready", about.ready, "Whether new requests are taken"),
    Entry("GET", "/metrics", about.metrics, "Figures for Prometheus"),
    Entry("GET", "/version", about.version, "The version"),
    Entry("GET", "/server_info", about.server_info, "What the engine was built as"),
    Entry("GET", "/v1/engine/effective", about.effective, "What is really active, and why"),
    Entry("POST", "/reset_prefix_cache", about.reset_prefix_cache, "Forget what was computed"),
    Entry("GET", "/debug/steps", about.steps, "What each of the last steps computed"),
    Entry("GET", "/debug/kv", about.kv, "Who holds which blocks of K/V"),
)
