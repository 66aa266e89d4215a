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
    ApiRoute("POST", "/v1/chat/completions", chat.create_chat_completion, "Answer a conversation",
          chatbody.ChatBody, replies.ChatReply),
    ApiRoute("POST", "/v1/chat/completions/input_tokens", tokens.count_chat_tokens,
          "How long a conversation is", chatbody.ChatBody, replies.CountReply),
    ApiRoute("POST", "/v1/completions", completions.create_completion, "Continue prompts",
          completions.CompletionBody, replies.CompletionReply),
    ApiRoute("POST", "/v1/responses", responses.create_response, "A response that is not kept",
          responses.ResponseBody, replies.ResponseReply),
    ApiRoute("POST", "/v1/responses/input_tokens", tokens.count_response_tokens,
          "How long what is to be responded to is", responses.ResponseBody, replies.CountReply),
    ApiRoute("POST", "/v1/embeddings", embeddings.create_embeddings, "A vector for each prompt",
          embeddings.EmbeddingBody, replies.EmbeddingReply),
    ApiRoute("GET", "/v1/models", about.list_models, "The models that are served",
          reply=replies.ModelsReply),
    ApiRoute("GET", "/v1/models/{model:path}", about.get_model, "One of the models",
          reply=replies.ModelCard),
)
ANTHROPIC = (
    ApiRoute("POST", "/v1/messages", messages.create_message, "Answer a conversation",
          messages.MessagesBody, replies.MessageReply, messagewriter.make_error),
    ApiRoute("POST", "/v1/messages/count_tokens", messages.count_tokens,
          "How long a conversation is",
          messages.CountBody, replies.CountReply, messagewriter.make_error),
)
LLAMA = (
    ApiRoute("POST", "/completion", llama.complete, "Continue prompts",
          llama.LlamaBody, replies.LlamaReply | list[replies.LlamaReply]),
    ApiRoute("POST", "/infill", infill.infill, "Fill in the text at a cursor",
          infill.InfillBody, replies.LlamaReply),
    ApiRoute("GET", "/props", props.get_props, "Defaults, context and template",
          reply=replies.PropsReply),
    ApiRoute("GET", "/tokenizer_info", props.get_tokenizer_info, "What the vocabulary is",
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
          ollamabody.OllamaChatBody, replies.OllamaReply, ollama.make_error),
    ApiRoute("POST", "/api/generate", ollama.generate, "Answer a prompt",
          ollamabody.OllamaGenerateBody, replies.OllamaReply, ollama.make_error),
    ApiRoute("POST", "/api/embed", ollama_about.embed, "A vector for each text",
          ollamabody.EmbedBody, replies.EmbedReply, ollama.make_error),
    ApiRoute("POST", "/api/embeddings", ollama_about.embed_one, "A vector for one text",
          ollamabody.EmbeddingsBody, replies.OneVectorReply, ollama.make_error),
    ApiRoute("GET", "/api/tags", ollama_about.list_models, "The models that are served",
          None, replies.TagsReply, ollama.make_error),
    ApiRoute("GET", "/api/ps", ollama_about.list_running, "The models that are loaded",
          None, replies.TagsReply, ollama.make_error),
    ApiRoute("POST", "/api/show", ollama_about.show, "One of the models",
          ollamabody.ShowBody, replies.ShowReply, ollama.make_error),
    ApiRoute("GET", "/api/version", about.get_version, "The version",
          None, replies.VersionReply, ollama.make_error),
)
OWN = (
    ApiRoute("POST", "/generate", generate.generate, "Continue one prompt",
          generate.GenerateBody, replies.GenerateReply),
    ApiRoute("GET", "/health", about.get_health, "Whether the engine lives and gets on",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/v1/health", about.get_health, "As /health, by llama-server's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/ping", about.get_health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("POST", "/ping", about.get_health, "As /health, by vLLM's other name",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/load", about.get_load, "How many requests are under way",
          reply=replies.LoadReply),
    ApiRoute("GET", "/ready", about.get_ready, "Whether new requests are taken",
          reply=replies.StatusReply, open=True),
    ApiRoute("GET", "/metrics", about.get_metrics, "Figures for Prometheus", media="text/plain"),
    ApiRoute("GET", "/version", about.get_version, "The version", reply=replies.VersionReply),
    ApiRoute("GET", "/server_info", about.get_server_info, "What the engine was built as"),
    ApiRoute("GET", "/v1/engine/effective", about.get_effective,
          "What is really active, and why"),
    ApiRoute("POST", "/reset_prefix_cache", about.reset_prefix_cache,
          "Forget what was computed"),
    ApiRoute("GET", "/debug/steps", about.get_steps, "What each of the last steps computed"),
    ApiRoute("GET", "/debug/kv", about.get_kv, "Who holds which blocks of K/V"),
    ApiRoute("GET", "/openapi.json", docs.make_openapi_handler(lambda: TABLES), "This document"),
    ApiRoute("GET", "/docs", docs.get_page, "This document as a page",
          media="text/html", open=True),
    ApiRoute("GET", "/docs/page.js", docs.get_file, "Of the page",
          media="text/javascript", open=True),
    ApiRoute("GET", "/docs/swagger-ui.css", docs.get_file, "Of the page",
          media="text/css", open=True),
    ApiRoute("GET", "/docs/swagger-ui-bundle.js", docs.get_file, "Of the page",
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
PREFIXES = (("/v1/messages", messagewriter.make_error), ("/api/", ollama.make_error))


def find_error_format(path: str) -> Shape:
    """How errors are written on a path, whether it is served or not."""
    return next((shape for start, shape in PREFIXES if path.startswith(start)), HttpError.body)
