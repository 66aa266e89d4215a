"""All routes, each with its body, its reply and its error format.

Invariant: the app and its OpenAPI document are both made from `ROUTES`.
"""

from flyweight.server.apis import openapi, own_routes, page, replies, tokens
from flyweight.server.apis.anthropic import messages, messages_stream
from flyweight.server.apis.llamacpp import completion as llama
from flyweight.server.apis.llamacpp import infill
from flyweight.server.apis.ollama import handlers as ollama
from flyweight.server.apis.ollama import models as ollama_models
from flyweight.server.apis.ollama import pull as ollama_pull
from flyweight.server.apis.ollama import schema as ollama_schema
from flyweight.server.apis.openai import chat, chat_schema, completions, embeddings, responses
from flyweight.server.apis.openapi import ApiRoute, ApiTable, ApiTables
from flyweight.server.transport.errors import HttpError, Shape

# fmt: off
OPENAI = (
    ApiRoute("POST", "/v1/chat/completions", chat.create_chat_completion, "Answer a conversation",
          chat_schema.ChatBody, replies.ChatReply),
    ApiRoute("POST", "/v1/chat/completions/input_tokens", tokens.count_chat_tokens,
          "How long a conversation is", chat_schema.ChatBody, replies.CountReply),
    ApiRoute("POST", "/v1/completions", completions.create_completion, "Continue prompts",
          completions.CompletionBody, replies.CompletionReply),
    ApiRoute("POST", "/v1/responses", responses.create_response, "A response that is not kept",
          responses.ResponseBody, replies.ResponseReply),
    ApiRoute("POST", "/v1/responses/input_tokens", tokens.count_response_tokens,
          "How long what is to be responded to is", responses.ResponseBody, replies.CountReply),
    ApiRoute("POST", "/v1/embeddings", embeddings.create_embeddings, "A vector for each prompt",
          embeddings.EmbeddingBody, replies.EmbeddingReply),
    ApiRoute("GET", "/v1/models", own_routes.list_models, "The models that are served",
          reply=replies.ModelsReply, polled=True),
    ApiRoute("POST", "/v1/models/load", own_routes.load_model, "Load a model",
          own_routes.ModelBody, replies.ModelCard),
    ApiRoute("POST", "/v1/models/unload", own_routes.unload_model, "Unload a model",
          own_routes.ModelBody, replies.ModelCard),
    ApiRoute("POST", "/v1/models/reload", own_routes.reload_models,
          "Read --models-file again, or let replicas read their files again",
          reply=replies.ReloadReply),
    ApiRoute("GET", "/v1/models/{model:path}", own_routes.get_model, "One of the models",
          reply=replies.ModelCard),
)
ANTHROPIC = (
    ApiRoute("POST", "/v1/messages", messages.create_message, "Answer a conversation",
          messages.MessagesBody, replies.MessageReply, messages_stream.make_error),
    ApiRoute("POST", "/v1/messages/count_tokens", messages.count_tokens,
          "How long a conversation is",
          messages.CountBody, replies.CountReply, messages_stream.make_error),
)
LLAMA = (
    ApiRoute("POST", "/completion", llama.complete, "Continue prompts",
          llama.LlamaBody, replies.LlamaReply | list[replies.LlamaReply]),
    ApiRoute("POST", "/infill", infill.infill, "Fill in the text at a cursor",
          infill.InfillBody, replies.LlamaReply),
    ApiRoute("GET", "/props", tokens.get_props, "Defaults, context and template",
          reply=replies.PropsReply),
    ApiRoute("GET", "/tokenizer_info", tokens.get_tokenizer_info, "What the vocabulary is",
          reply=replies.TokenizerReply),
    ApiRoute("POST", "/tokenize", tokens.tokenize, "Text or messages to ids",
          tokens.TokenizeBody, replies.TokenizeReply),
    ApiRoute("POST", "/detokenize", tokens.detokenize, "Ids to text",
          tokens.DetokenizeBody, replies.DetokenizeReply),
    ApiRoute("POST", "/apply-template", tokens.apply_template, "Messages to text",
          chat_schema.ChatBody, replies.TemplateReply),
)
OLLAMA = (
    ApiRoute("POST", "/api/chat", ollama.chat, "Answer a conversation",
          ollama_schema.OllamaChatBody, replies.OllamaReply, ollama.make_error),
    ApiRoute("POST", "/api/generate", ollama.generate, "Answer a prompt",
          ollama_schema.OllamaGenerateBody, replies.OllamaReply, ollama.make_error),
    ApiRoute("POST", "/api/embed", ollama_models.embed, "A vector for each text",
          ollama_schema.EmbedBody, replies.EmbedReply, ollama.make_error),
    ApiRoute("POST", "/api/embeddings", ollama_models.embed_one, "A vector for one text",
          ollama_schema.EmbeddingsBody, replies.OneVectorReply, ollama.make_error),
    ApiRoute("GET", "/api/tags", ollama_models.list_models, "The models that are served",
          None, replies.TagsReply, ollama.make_error),
    ApiRoute("GET", "/api/ps", ollama_models.list_running, "The models that are loaded",
          None, replies.TagsReply, ollama.make_error),
    ApiRoute("POST", "/api/show", ollama_models.show, "One of the models",
          ollama_schema.ShowBody, replies.ShowReply, ollama.make_error),
    ApiRoute("POST", "/api/pull", ollama_pull.pull, "Fetch a model of the Hub",
          ollama_pull.PullBody, replies.PullReply, ollama.make_error),
    ApiRoute("GET", "/api/version", own_routes.get_version, "The version",
          None, replies.VersionReply, ollama.make_error),
)
OWN = (
    ApiRoute("POST", "/generate", own_routes.generate, "Continue one prompt",
          own_routes.GenerateBody, replies.GenerateReply),
    ApiRoute("GET", "/health", own_routes.get_health, "Whether the engine lives and gets on",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/v1/health", own_routes.get_health, "As /health, by llama-server's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/ping", own_routes.get_health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("POST", "/ping", own_routes.get_health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/load", own_routes.get_load, "How many requests are under way",
          reply=replies.LoadReply),
    ApiRoute("GET", "/ready", own_routes.get_ready, "Whether new requests are taken",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/metrics", own_routes.get_metrics, "Figures for Prometheus",
          media="text/plain", polled=True),
    ApiRoute("GET", "/version", own_routes.get_version, "The version", reply=replies.VersionReply),
    ApiRoute("GET", "/server_info", own_routes.get_server_info, "What the engine was built as"),
    ApiRoute("GET", "/v1/engine/effective", own_routes.get_effective,
          "What is really active, and why", polled=True),
    ApiRoute("POST", "/reset_prefix_cache", own_routes.reset_prefix_cache,
          "Forget what was computed"),
    ApiRoute("GET", "/debug/steps", own_routes.get_steps, "What each of the last steps computed"),
    ApiRoute("GET", "/debug/kv", own_routes.get_kv, "Who holds which blocks of K/V", polled=True),
    ApiRoute("GET", "/openapi.json", openapi.make_openapi_handler(lambda: TABLES), "This document"),
    ApiRoute("GET", "/docs", openapi.get_page, "This document as a page",
          media="text/html", open=True),
    ApiRoute("GET", "/docs/page.js", openapi.get_file, "Of the page",
          media="text/javascript", open=True),
    ApiRoute("GET", "/docs/swagger-ui.css", openapi.get_file, "Of the page",
          media="text/css", open=True),
    ApiRoute("GET", "/docs/swagger-ui-bundle.js", openapi.get_file, "Of the page",
          media="text/javascript", open=True),
    *page.make_routes(),
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
PREFIXES = (("/v1/messages", messages_stream.make_error), ("/api/", ollama.make_error))


def find_error_format(path: str) -> Shape:
    """The error format of a path, whether there is such a route or not."""
    return next((shape for start, shape in PREFIXES if path.startswith(start)), HttpError.body)
