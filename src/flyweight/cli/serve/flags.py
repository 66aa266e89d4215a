"""The options of `flyweight serve`, one row each: what is written, what it sets, what help says.

Invariant: every setting of the engine and every limit of the server that a user may choose has a
row, under vLLM's name where vLLM has one.  Ranges are `Settings`' and `ServerSettings`'.
"""

from flyweight.arguments.flags import ENGINE, MODEL, Flag

SERVED = (
    Flag(
        "served-model-name", "words", "Names that requests may use for the model.",
        "server.served_model_name", "NAME ...",
    ),
    Flag(
        "chat-template", "text", "A file with a chat template, or the template itself.",
        metavar="FILE|TEXT",
    ),
    Flag(
        "tool-call-parser", "text", "Format of tool calls: auto, none, hermes, mistral, ...",
        "server.tool_call_parser", "NAME",
    ),
    Flag(
        "reasoning-parser", "text", "Format of reasoning: auto, none, qwen3, mistral, ...",
        "server.reasoning_parser", "NAME",
    ),
    Flag(
        "thinking-percent", "whole",
        "Share of max_tokens for reasoning before a required tool call.",
        "server.thinking_percent", "PERCENT",
    ),
    Flag(
        "default-chat-template-kwargs", "text",
        'Variables of the chat template: {"enable_thinking": false}.',
        metavar="JSON",
    ),
)  # fmt: skip

PACE = (
    Flag(
        "target-step-time", "number", "Target time of a step.",
        "server.target_step_time", "SECONDS",
    ),
    Flag(
        "max-prefill-delay", "number",
        "Time that prompts may lose to running answers; then every second step is for prompts.",
        "server.max_prefill_delay", "SECONDS",
    ),
)  # fmt: skip

HTTP = (
    Flag("host", "text", "Address to listen on.", "server.host", "ADDRESS"),
    Flag("port", "whole", "Port to listen on; 0: any free port.", "server.port", "PORT"),
    Flag("uds", "text", "Unix socket to listen on, instead of a port.", "server.uds", "PATH"),
    Flag(
        "ssl-certfile", "text", "File with a certificate (PEM), to serve HTTPS.",
        "server.ssl_certfile", "FILE",
    ),
    Flag(
        "ssl-keyfile", "text", "File with the key of the certificate.",
        "server.ssl_keyfile", "FILE",
    ),
    Flag(
        "root-path", "text", "Prefix of paths that a proxy in front removes.",
        "server.root_path", "PATH",
    ),
    Flag("api-key", "words", "Keys that clients may send.", metavar="KEY ..."),
    Flag("api-key-file", "words", "Files with one key a line.", metavar="FILE ..."),
    Flag(
        "share-prefix-cache", "switch", "Share one prefix cache among all keys.",
        "server.share_prefix_cache",
    ),
    Flag("insecure", "switch", "Listen on a network without a key.", "server.insecure"),
    Flag(
        "allowed-hosts", "words", "More names to accept in the Host header.",
        "server.allowed_hosts", "NAME ...",
    ),
    Flag(
        "allowed-origins", "words", "Web pages that may send requests: https://page.example, or *.",
        "server.allowed_origins", "ORIGIN ...", ("--allowed-origin",),
    ),
    Flag(
        "allowed-methods", "words", "Methods that web pages may use: GET POST, or *.",
        "server.allowed_methods", "METHOD ...",
    ),
    Flag(
        "allowed-headers", "words", "Headers that web pages may send: names, or *.",
        "server.allowed_headers", "NAME ...",
    ),
    Flag(
        "allow-credentials", "switch", "Let web pages send cookies and credentials.",
        "server.allow_credentials",
    ),
    Flag("open-metrics", "switch", "Serve /metrics without a key.", "server.open_metrics"),
    Flag(
        "ignore-unknown-fields", "switch",
        "Ignore unknown fields, and list them in x-ignored-params.",
        "server.ignore_unknown_fields",
    ),
    Flag(
        "stream-interval", "whole", "Tokens in each piece of a stream after the first.",
        "server.stream_interval", "TOKENS",
    ),
    Flag(
        "enable-force-include-usage", "switch", "End every stream with its usage.",
        "server.enable_force_include_usage",
    ),
)  # fmt: skip

LOG = (
    Flag(
        "enable-log-requests", "switch", "Log a line for each request, without prompts.",
        "server.enable_log_requests",
    ),
    Flag("disable-log-requests", "switch", "Log no line for a request."),
    Flag("disable-uvicorn-access-log", "switch", "The same as --disable-log-requests."),
    Flag(
        "uvicorn-log-level", "text", "Log requests at info; not at warning, error and critical.",
        metavar="LEVEL",
    ),
    Flag("log-format", "text", "Format of the log.", "server.log_format", "text|json"),
    Flag("log-file", "text", "File for the log, instead of stderr.", "server.log_file", "PATH"),
    Flag(
        "log-file-bytes", "size", "Size at which the file becomes PATH.1 and a new one begins.",
        "server.log_file_bytes", "SIZE",
    ),
)  # fmt: skip

LIMITS = (
    Flag(
        "max-queued-requests", "whole", "Requests that may wait.",
        "server.max_queued_requests", "N", ("--max-num-queued-reqs",),
    ),
    Flag(
        "max-queued-tokens", "count", "Prompt tokens that may wait.",
        "server.max_queued_tokens", "N", ("--max-num-queued-tokens",),
    ),
    Flag(
        "queue-timeout", "number", "Time a request may wait until it begins.",
        "server.queue_timeout", "SECONDS",
    ),
    Flag(
        "request-timeout", "number", "Time until an answer must be complete.",
        "server.request_timeout", "SECONDS",
    ),
    Flag(
        "shutdown-timeout", "number", "Time for running requests to finish after SIGTERM.",
        "server.shutdown_timeout", "SECONDS",
    ),
    Flag(
        "engine-timeout", "number", "Time without progress until /health reports an error.",
        "server.engine_timeout", "SECONDS",
    ),
    Flag("max-body-bytes", "size", "Size of a request's body.", "server.max_body_bytes", "SIZE"),
    Flag(
        "max-total-body-bytes", "size", "Size of all request bodies together.",
        "server.max_total_body_bytes", "SIZE",
    ),
    Flag(
        "max-body-values", "count", "JSON values in a request's body.",
        "server.max_body_values", "N",
    ),
    Flag(
        "body-timeout", "number", "Time to receive a request's body.",
        "server.body_timeout", "SECONDS",
    ),
    Flag(
        "max-tokenize-bytes", "size", "Size of a text for /tokenize.",
        "server.max_tokenize_bytes", "SIZE",
    ),
    Flag(
        "max-header-bytes", "size", "Size of a request's headers.",
        "server.max_header_bytes", "SIZE",
    ),
    Flag(
        "header-timeout", "number", "Time to receive a request's headers.",
        "server.header_timeout", "SECONDS",
    ),
    Flag(
        "send-timeout", "number", "Time that a client may leave its answer unread.",
        "server.send_timeout", "SECONDS",
    ),
    Flag(
        "ping-interval", "number", "Time of silence between pings of a stream; 0: no pings.",
        "server.ping_interval", "SECONDS",
    ),
    Flag(
        "max-stream-buffer-tokens", "count", "Tokens that an answer may be ahead of its reader.",
        "server.max_stream_buffer_tokens", "N",
    ),
    Flag(
        "max-send-buffer-bytes", "size", "Size of all unread answers together.",
        "server.max_send_buffer_bytes", "SIZE",
    ),
    Flag("max-prompts", "whole", "Prompts of a request.", "server.max_prompts", "N"),
    Flag("max-choices", "whole", "Choices (n) for each prompt.", "server.max_choices", "N"),
    Flag(
        "max-request-choices", "whole", "Choices of a request: prompts times n.",
        "server.max_request_choices", "N",
    ),
    Flag("max-stop-strings", "whole", "Stop strings of a request.", "server.max_stop_strings", "N"),
    Flag("max-stop-bytes", "size", "Size of a stop string.", "server.max_stop_bytes", "SIZE"),
    Flag("max-logit-bias", "whole", "Entries of logit_bias.", "server.max_logit_bias", "N"),
    Flag("max-logprobs", "whole", "Log-probabilities for each token.", "server.max_logprobs", "N"),
    Flag("max-tools", "whole", "Tools of a request.", "server.max_tools", "N"),
    Flag(
        "max-request-tokens", "count", "Tokens of a request: choices times max_tokens.",
        "server.max_request_tokens", "N",
    ),
    Flag(
        "max-response-prompt-logprobs", "count", "Prompt log-probabilities in a response.",
        "server.max_response_prompt_logprobs", "N",
    ),
    Flag(
        "max-response-logprobs", "count", "Answer log-probabilities in a response.",
        "server.max_response_logprobs", "N",
    ),
    Flag(
        "max-schema-bytes", "size", "Size of a schema or grammar.",
        "server.max_schema_bytes", "SIZE",
    ),
    Flag("max-schema-depth", "whole", "Nesting depth of a schema.", "server.max_schema_depth", "N"),
    Flag(
        "schema-compile-timeout", "number", "Time to compile a schema.",
        "server.schema_compile_timeout", "SECONDS",
    ),
    Flag(
        "template-timeout", "number", "Time to render a chat template.",
        "server.template_timeout", "SECONDS",
    ),
    Flag(
        "max-template-growth", "count", "Prompt characters for each character of the messages.",
        "server.max_template_growth", "N",
    ),
    Flag(
        "max-priority", "whole", "Largest priority of a request, above or below 0.",
        "server.max_priority", "N",
    ),
    Flag("max-connections", "whole", "Most open connections.", "server.max_connections", "N"),
)  # fmt: skip

PROCESS = (
    Flag("config", "text", "YAML file of these options; the command line wins.", metavar="FILE"),
    Flag("detach", "switch", "Return when the server is ready; `flyweight stop` ends it."),
    Flag("json", "switch", "Print the banner as one JSON object on stdout."),
)  # fmt: skip

GROUPS = {
    "Model": MODEL + SERVED,
    "Engine": ENGINE + PACE,
    "HTTP": HTTP,
    "Log": LOG,
    "Limits": LIMITS,
    "Process": PROCESS,
}
