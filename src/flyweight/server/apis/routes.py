"""Every route there is: its body, its reply, the shape of its errors.

Invariant: what the server answers, its OpenAPI document describes: both are made from `ROUTES`.
"""

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
from flyweight.server.apis.route import ApiRoute, ApiTable, ApiTables
from flyweight.server.transport.errors import HttpError, Shape

# fmt: off
OPENAI = (
    ApiRoute("POST", "/v1/chat/completions", chat.chat, "Answer a conversation",
          chatbody.ChatBody, replies.ChatReply),
    ApiRoute("POST", "/v1/chat/completions/input_tokens", tokens.input_tokens,
          "How long a conversation is", chatbody.ChatBody, replies.CountReply),
    ApiRoute("POST", "/v1/completions", completions.completions, "Continue prompts",
          completions.CompletionBody, replies.CompletionReply),
    ApiRoute("POST", "/v1/responses", responses.responses, "A response that is not kept",
          responses.ResponseBody, replies.ResponseReply),
    ApiRoute("POST", "/v1/responses/input_tokens", tokens.response_tokens,
          "How long what is to be responded to is", responses.ResponseBody, replies.CountReply),
    ApiRoute("POST", "/v1/embeddings", embeddings.embeddings, "A vector for each prompt",
          embeddings.EmbeddingBody, replies.EmbeddingReply),
    ApiRoute("GET", "/v1/models", about.models, "The models that are served",
          reply=replies.ModelsReply),
    ApiRoute("GET", "/v1/models/{model:path}", about.model, "One of the models",
          reply=replies.ModelCard),
)
ANTHROPIC = (
    ApiRoute("POST", "/v1/messages", messages.messages, "Answer a conversation",
          messages.MessagesBody, replies.MessageReply, messagewriter.error_of),
    ApiRoute("POST", "/v1/messages/count_tokens", messages.count_tokens,
          "How long a conversation is",
          messages.CountBody, replies.CountReply, messagewriter.error_of),
)
LLAMA = (
    ApiRoute("POST", "/completion", llama.completion, "Continue prompts",
          llama.LlamaBody, replies.LlamaReply | list[replies.LlamaReply]),
    ApiRoute("POST", "/infill", infill.infill, "Fill in the text at a cursor",
          infill.InfillBody, replies.LlamaReply),
    ApiRoute("GET", "/props", props.props, "Defaults, context and template",
          reply=replies.PropsReply),
    ApiRoute("GET", "/tokenizer_info", props.tokenizer_info, "What the vocabulary is",
          reply=replies.TokenizerReply),
    ApiRoute("POST", "/tokenize", tokens.tokenize, "Text or messages to ids",
          tokens.TokenizeBody, replies.TokenizeReply),
    ApiRoute("POST", "/detokenize", tokens.detokenize, "Ids to text",
          tokens.DetokenizeBody, replies.DetokenizeReply),
    ApiRoute("POST", "/apply-template", tokens.apply_template, "Messages to text",
          chatbody.ChatBody, replies.TemplateReply),
)
OLLAMA = (
    ApiRoute("POST", "/api/chat", ollama.chat, "Answer a conversation",
          ollamabody.OllamaChatBody, replies.OllamaReply, ollama.error_of),
    ApiRoute("POST", "/api/generate", ollama.generate, "Answer a prompt",
          ollamabody.OllamaGenerateBody, replies.OllamaReply, ollama.error_of),
    ApiRoute("POST", "/api/embed", ollama_about.embed, "A vector for each text",
          ollamabody.EmbedBody, replies.EmbedReply, ollama.error_of),
    ApiRoute("POST", "/api/embeddings", ollama_about.embeddings, "A vector for one text",
          ollamabody.EmbeddingsBody, replies.OneVectorReply, ollama.error_of),
    ApiRoute("GET", "/api/tags", ollama_about.tags, "The models that are served",
          None, replies.TagsReply, ollama.error_of),
    ApiRoute("GET", "/api/ps", ollama_about.running, "The models that are loaded",
          None, replies.TagsReply, ollama.error_of),
    ApiRoute("POST", "/api/show", ollama_about.show, "One of the models",
          ollamabody.ShowBody, replies.ShowReply, ollama.error_of),
    ApiRoute("GET", "/api/version", about.version, "The version",
          None, replies.VersionReply, ollama.error_of),
)
OWN = (
    ApiRoute("POST", "/generate", generate.generate, "Continue one prompt",
          generate.GenerateBody, replies.GenerateReply),
    ApiRoute("GET", "/health", about.health, "Whether the engine lives and gets on",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/v1/health", about.health, "As /health, by llama-server's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/ping", about.health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("POST", "/ping", about.health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/load", about.load, "How many requests are under way",
          reply=replies.LoadReply),
    ApiRoute("GET", "/ready", about.ready, "Whether new requests are taken",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/metrics", about.metrics, "Figures for Prometheus", media="text/plain"),
    ApiRoute("GET", "/version", about.version, "The version", reply=replies.VersionReply),
    ApiRoute("GET", "/server_info", about.server_info, "What the engine was built as"),
    ApiRoute("GET", "/v1/engine/effective", about.effective, "What is really active, and why"),
    ApiRoute("POST", "/reset_prefix_cache", about.reset_prefix_cache, "Forget what was computed"),
    ApiRoute("GET", "/debug/steps", about.steps, "What each of the last steps computed"),
    ApiRoute("GET", "/debug/kv", about.kv, "Who holds which blocks of K/V"),
    ApiRoute("GET", "/openapi.json", docs.openapi_handler(lambda: TABLES), "This document"),
    ApiRoute("GET", "/docs", docs.page, "This document as a page", media="text/html", open=True),
    ApiRoute("GET", "/docs/page.js", docs.static, "Of the page",
          media="text/javascript", open=True),
    ApiRoute("GET", "/docs/swagger-ui.css", docs.static, "Of the page",
          media="text/css", open=True),
    ApiRoute("GET", "/docs/swagger-ui-bundle.js", docs.static, "Of the page",
          media="text/javascript", open=True),
)
# fmt: on
TABLES: ApiTables = {
    "OpenAI": ApiTable("OpenAI's API, with vLLM's fields", OPENAI),
    "Anthropic": ApiTable("Anthropic's API", ANTHROPIC),
    "llama.cpp": ApiTable("llama-server's API, and vLLM's routes for text and ids", LLAMA),
    "Ollama": ApiTable("Ollama's API", OLLAMA),
    "flyweight": ApiTable("the server itself", OWN),
}
ROUTES = tuple(route for table in TABLES.values() for route in table.routes)
PREFIXES = (("/v1/messages", messagewriter.error_of), ("/api/", ollama.error_of))


def shape_of(path: str) -> Shape:
    """How errors are written on a path, whether it is served or not."""
    return next((shape for start, shape in PREFIXES if path.startswith(start)), HttpError.body)
