"""The options of `flyweight serve`, one row each: what is written, what it sets, what help says.

Invariant: every setting of the engine and every limit of the server that a user may choose has a
row, under vLLM's name where vLLM has one.  Ranges are `Settings`' and `ServerSettings`'.
"""

from flyweight.arguments.flags import ENGINE, MODEL, Flag

SERVED = (
    Flag("served-model-name", "words", "What requests may call it.", "server.names", "NAME ..."),
    Flag("chat-template", "text", "A file, or the template itself.", metavar="FILE|TEXT"),
    Flag(
        "tool-call-parser",
        "text",
        "How calls are written: auto, none, hermes, mistral, ...",
        "server.tool_call_parser",
        "NAME",
    ),
    Flag(
        "reasoning-parser",
        "text",
        "How reasoning is marked: auto, none, qwen3, mistral, ...",
        "server.reasoning_parser",
        "NAME",
    ),
    Flag(
        "thinking-percent",
        "whole",
        "Of max_tokens, before a demanded call.",
        "server.thinking_percent",
    ),
    Flag(
        "default-chat-template-kwargs",
        "text",
        'Switches of the template: {"enable_thinking": false}.',
        metavar="JSON",
    ),
)

PACE = (
    Flag("step-seconds", "number", "How long a step should take.", "server.step_seconds"),
    Flag(
        "patience-seconds", "number",
        "That prompts may lose to decodes; from there every second step is theirs alone.",
        "server.patience_seconds",
    ),
)  # fmt: skip

HTTP = (
    Flag("host", "text", "Where to listen.", "server.host", "ADDRESS"),
    Flag("port", "whole", "The port; 0 is any that is free.", "server.port", "PORT"),
    Flag(
        "uds", "text", "A Unix socket to listen on, in place of host and port.", "server.uds",
        "PATH",
    ),
    Flag("ssl-certfile", "text", "A certificate (PEM): HTTPS.", "server.ssl_certfile", "FILE"),
    Flag("ssl-keyfile", "text", "The key of the certificate.", "server.ssl_keyfile", "FILE"),
    Flag(
        "root-path", "text", "A prefix of paths that a proxy in front takes off.",
        "server.root_path", "PATH",
    ),
    Flag("api-key", "words", "Keys, any of which will do.", metavar="KEY ..."),
    Flag("api-key-file", "words", "Files with a key a line.", metavar="FILE ..."),
    Flag(
        "share-prefix-cache", "switch", "One prefix cache for all keys.",
        "server.share_prefix_cache",
    ),
    Flag("insecure", "switch", "Serve a network without a key.", "server.insecure"),
    Flag("allowed-host", "words", "Further names in the Host header.", "server.allowed_hosts"),
    Flag(
        "allowed-origins", "words", "Pages that may ask: https://page.example, or *.",
        "server.allowed_origins", "ORIGIN ...", ("--allowed-origin",),
    ),
    Flag(
        "allowed-methods", "words", "What they may do: GET POST, or *.", "server.allowed_methods",
        "METHOD ...",
    ),
    Flag(
        "allowed-headers", "words", "What they may send, or *.", "server.allowed_headers",
        "NAME ...",
    ),
    Flag("allow-credentials", "switch", "With cookies and the like.", "server.allow_credentials"),
    Flag("open-metrics", "switch", "/metrics needs no key.", "server.open_metrics"),
    Flag("lenient", "switch", "Leave unknown fields out; x-ignored-params.", "server.lenient"),
    Flag(
        "stream-interval", "whole", "Tokens of a piece of a stream, from the second on.",
        "server.stream_interval", "TOKENS",
    ),
    Flag(
        "enable-force-include-usage", "switch", "Usage at the end of every stream.",
        "server.force_include_usage",
    ),
)  # fmt: skip

LOG = (
    Flag("enable-log-requests", "switch", "A line a request, no prompts.", "server.log_requests"),
    Flag("disable-log-requests", "switch", "No line a request."),
    Flag("disable-uvicorn-access-log", "switch", "The same."),
    Flag("uvicorn-log-level", "text", "info; warning and above: the same.", metavar="LEVEL"),
    Flag("log-format", "text", "text or json.", "server.log_format", "text|json"),
    Flag("log-file", "text", "For the log, instead of stderr.", "server.log_file", "PATH"),
    Flag(
        "log-file-bytes", "size", "Most in it; then it becomes PATH.1, and a new one begins.",
        "server.log_file_bytes", "SIZE",
    ),
)  # fmt: skip

LIMITS = (
    Flag(
        "max-queued-requests", "whole", "That wait to be computed.", "server.queue_requests", "N",
        ("--max-num-queued-reqs",),
    ),
    Flag(
        "max-queued-tokens", "count", "Of prompts that wait.", "server.queue_tokens", "N",
        ("--max-num-queued-tokens",),
    ),
    Flag("queue-timeout", "number", "Until one is begun.", "server.queue_seconds"),
    Flag("request-timeout", "number", "Until an answer is whole.", "server.request_seconds"),
    Flag(
        "drain-seconds", "number", "For what runs, on SIGTERM.", "server.drain_seconds",
        also=("--shutdown-timeout",),
    ),
    Flag("stuck-seconds", "number", "Of silence until /health says so.", "server.stuck_seconds"),
    Flag("max-body-bytes", "size", "Of a request's body.", "server.body_bytes", "SIZE"),
    Flag("max-bodies-bytes", "size", "Of all bodies.", "server.bodies_bytes", "SIZE"),
    Flag("max-body-values", "count", "Of JSON in a body.", "server.body_values", "N"),
    Flag("body-seconds", "number", "For a body to come.", "server.body_seconds"),
    Flag("max-tokenize-bytes", "size", "Of a text to /tokenize.", "server.tokenize_bytes", "SIZE"),
    Flag("max-header-bytes", "size", "Of a request's head.", "server.header_bytes", "SIZE"),
    Flag("header-seconds", "number", "For a head to come.", "server.header_seconds"),
    Flag("stalled-seconds", "number", "For a reader that reads not.", "server.stalled_seconds"),
    Flag("ping-seconds", "number", "Of a stream's silence; 0: never.", "server.ping_seconds"),
    Flag("max-unread-tokens", "count", "Ahead of a reader.", "server.unread_tokens", "N"),
    Flag("max-unread-bytes", "size", "Of all answers.", "server.unread_bytes", "SIZE"),
    Flag("max-prompts", "whole", "In one request.", "server.prompts", "N"),
    Flag("max-choices", "whole", "n of a request.", "server.choices", "N"),
    Flag("max-request-choices", "whole", "Prompts times n.", "server.request_choices", "N"),
    Flag("max-stops", "whole", "Stop strings of a request.", "server.stops", "N"),
    Flag("max-stop-bytes", "size", "Of each stop string.", "server.stop_bytes", "SIZE"),
    Flag("max-logit-bias", "whole", "Entries of logit_bias.", "server.biases", "N"),
    Flag("max-logprobs", "whole", "Log-probabilities of a token.", "server.logprobs", "N"),
    Flag("max-tools", "whole", "Tools of a request.", "server.tools", "N"),
    Flag("max-request-tokens", "count", "Choices times max_tokens.", "server.request_tokens", "N"),
    Flag(
        "max-prompt-scores", "count", "Log-probabilities of prompts in a reply.",
        "server.prompt_scores", "N",
    ),
    Flag("max-answer-scores", "count", "And of answers.", "server.answer_scores", "N"),
    Flag("max-schema-bytes", "size", "Of a schema or grammar.", "server.schema_bytes", "SIZE"),
    Flag("max-schema-depth", "whole", "Of a schema.", "server.schema_depth", "N"),
    Flag("compile-seconds", "number", "For a schema to compile.", "server.compile_seconds"),
    Flag("template-seconds", "number", "For a chat template.", "server.template_seconds"),
    Flag(
        "template-growth", "count", "Characters of a prompt for each that was sent.",
        "server.template_growth", "N",
    ),
    Flag("max-priority", "whole", "Of a request, either way from 0.", "server.priorities", "N"),
    Flag("max-connections", "whole", "Open at once.", "server.connections", "N"),
)  # fmt: skip

PROCESS = (
    Flag("config", "text", "A YAML file of these options; the command line wins.", "", "FILE"),
    Flag("detach", "switch", "Return once it is ready; `flyweight stop` ends it."),
    Flag("json", "switch", "The banner as one JSON object on stdout."),
)

GROUPS = {
    "model": MODEL + SERVED,
    "engine": ENGINE + PACE,
    "HTTP": HTTP,
    "log": LOG,
    "limits, seconds and counts": LIMITS,
    "process": PROCESS,
}
