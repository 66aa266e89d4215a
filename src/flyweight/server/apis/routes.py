"""Every route there is: its body, its reply, the shape of its errors.

Invariant: what the server answers, its OpenAPI document describes: both are made from `ROUTES`.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.apis import about, docs, generate, replies, tokens
from flyweight.server.apis.anthropic import messages
from flyweight.server.apis.anthropic import messages_stream as messagewriter
from flyweight.server.apis.llamacpp import completion as llama
from flyweight.server.apis.llamacpp import infill, props
from flyweight.server.apis.ollama import handlers as ollama
from flyweight.server.apis.ollama import models as ollama_about
from flyweight.server.apis.ollama import schema as ollamabody
from flyweight.server.apis.openai import chat, completions, embeddings, responses
from flyweight.server.apis.openai import chat_schema as chatbody
from flyweight.server.front import Front
from flyweight.server.transport.errors import HttpError, Shape

Handler = Callable[[Front, Request], Coroutine[Any, Any, Response]]
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A route: what it answers to, the body it takes, what it replies (in `media`, which for JSON
    has a type), and the shape its dialect gives errors.  An `open` one needs no key.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[BaseModel] | None = None
    reply: Any = dict[str, Any]
    errors: Shape = HttpError.body
    media: str = JSON
    open: bool = False


# fmt: off
OPENAI = (
    Entry("POST", "/v1/chat/completions", chat.chat, "Answer a conversation",
          chatbody.ChatBody, replies.ChatReply),
    Entry("POST", "/v1/chat/completions/input_tokens", tokens.input_tokens,
          "How long a conversation is", chatbody.ChatBody, replies.CountReply),
    Entry("POST", "/v1/completions", completions.completions, "Continue prompts",
          completions.CompletionBody, replies.CompletionReply),
    Entry("POST", "/v1/responses", responses.responses, "A response that is not kept",
          responses.ResponseBody, replies.ResponseReply),
    Entry("POST", "/v1/responses/input_tokens", tokens.response_tokens,
          "How long what is to be responded to is", responses.ResponseBody, replies.CountReply),
    Entry("POST", "/v1/embeddings", embeddings.embeddings, "A vector for each prompt",
          embeddings.EmbeddingBody, replies.EmbeddingReply),
    Entry("GET", "/v1/models", about.models, "The models that are served",
          reply=replies.ModelsReply),
    Entry("GET", "/v1/models/{model:path}", about.model, "One of the models", reply=replies.Card),
)
ANTHROPIC = (
    Entry("POST", "/v1/messages", messages.messages, "Answer a conversation",
          messages.MessagesBody, replies.MessageReply, messagewriter.error_of),
    Entry("POST", "/v1/messages/count_tokens", messages.count_tokens, "How long a conversation is",
          messages.CountBody, replies.CountReply, messagewriter.error_of),
)
LLAMA = (
    Entry("POST", "/completion", llama.completion, "Continue prompts",
          llama.LlamaBody, replies.LlamaReply | list[replies.LlamaReply]),
    Entry("POST", "/infill", infill.infill, "Fill in the text at a cursor",
          infill.InfillBody, replies.LlamaReply),
    Entry("GET", "/props", props.props, "Defaults, context and template",
          reply=replies.PropsReply),
    Entry("GET", "/tokenizer_info", props.tokenizer_info, "What the vocabulary is",
          reply=replies.TokenizerReply),
    Entry("POST", "/tokenize", tokens.tokenize, "Text or messages to ids",
          tokens.TokenizeBody, replies.TokenizeReply),
    Entry("POST", "/detokenize", tokens.detokenize, "Ids to text",
          tokens.DetokenizeBody, replies.DetokenizeReply),
    Entry("POST", "/apply-template", tokens.apply_template, "Messages to text",
          chatbody.ChatBody, replies.TemplateReply),
)
OLLAMA = (
    Entry("POST", "/api/chat", ollama.chat, "Answer a conversation",
          ollamabody.OllamaChatBody, replies.OllamaReply, ollama.error_of),
    Entry("POST", "/api/generate", ollama.generate, "Answer a prompt",
          ollamabody.OllamaGenerateBody, replies.OllamaReply, ollama.error_of),
    Entry("POST", "/api/embed", ollama_about.embed, "A vector for each text",
          ollamabody.EmbedBody, replies.EmbedReply, ollama.error_of),
    Entry("POST", "/api/embeddings", ollama_about.embeddings, "A vector for one text",
          ollamabody.EmbeddingsBody, replies.OneVectorReply, ollama.error_of),
    Entry("GET", "/api/tags", ollama_about.tags, "The models that are served",
          None, replies.TagsReply, ollama.error_of),
    Entry("GET", "/api/ps", ollama_about.running, "The models that are loaded",
          None, replies.TagsReply, ollama.error_of),
    Entry("POST", "/api/show", ollama_about.show, "One of the models",
          ollamabody.ShowBody, replies.ShowReply, ollama.error_of),
    Entry("GET", "/api/version", about.version, "The version",
          None, replies.VersionReply, ollama.error_of),
)
OWN = (
    Entry("POST", "/generate", generate.generate, "Continue one prompt",
          generate.GenerateBody, replies.GenerateReply),
    Entry("GET", "/health", about.health, "Whether the engine lives and gets on",
          reply=replies.StatusReply, open=True),
    Entry("GET", "/v1/health", about.health, "As /health, by llama-server's other name",
          reply=replies.StatusReply, open=True),
    Entry("GET", "/ping", about.health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    Entry("POST", "/ping", about.health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    Entry("GET", "/load", about.load, "How many requests are under way", reply=replies.LoadReply),
    Entry("GET", "/ready", about.ready, "Whether new requests are taken",
          reply=replies.StatusReply, open=True),
    Entry("GET", "/metrics", about.metrics, "Figures for Prometheus", media="text/plain"),
    Entry("GET", "/version", about.version, "The version", reply=replies.VersionReply),
    Entry("GET", "/server_info", about.server_info, "What the engine was built as"),
    Entry("GET", "/v1/engine/effective", about.effective, "What is really active, and why"),
    Entry("POST", "/reset_prefix_cache", about.reset_prefix_cache, "Forget what was computed"),
    Entry("GET", "/debug/steps", about.steps, "What each of the last steps computed"),
    Entry("GET", "/debug/kv", about.kv, "Who holds which blocks of K/V"),
    Entry("GET", "/openapi.json", docs.openapi, "This document"),
    Entry("GET", "/docs", docs.page, "This document as a page", media="text/html", open=True),
    Entry("GET", "/docs/page.js", docs.static, "Of the page",
          media="text/javascript", open=True),
    Entry("GET", "/docs/swagger-ui.css", docs.static, "Of the page", media="text/css", open=True),
    Entry("GET", "/docs/swagger-ui-bundle.js", docs.static, "Of the page",
          media="text/javascript", open=True),
)
# fmt: on
ROUTES = OPENAI + ANTHROPIC + LLAMA + OLLAMA + OWN
PREFIXES = (("/v1/messages", messagewriter.error_of), ("/api/", ollama.error_of))


def shape_of(path: str) -> Shape:
    """How errors are written on a path, whether it is served or not."""
    return next((shape for start, shape in PREFIXES if path.startswith(start)), HttpError.body)
