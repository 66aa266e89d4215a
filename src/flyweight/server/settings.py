"""The settings of the server, each with its default, range, option and help.

Invariant: a `ServerSettings` that exists is valid.  Nothing but the standard library and names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any

from flyweight.errors import ConfigError
from flyweight.params.structured import DEEPEST, LONGEST
from flyweight.resources import TOKEN_CACHE
from flyweight.routing.policies import POLICIES
from flyweight.server.overload_steps import parse_overload_steps
from flyweight.text.meter import GROWTH, MOST_CHARACTERS, SECONDS, RenderBounds
from flyweight.text.tools.formats import find_format, find_marks
from flyweight.types import LONGEST_STOP, MAX_CHOICES, MAX_LOGPROBS, MAX_STOPS
from flyweight.validation.amounts import check_price, check_seconds
from flyweight.validation.origins import check_origins
from flyweight.validation.replicas import MOST_REPLICAS, check_replicas
from flyweight.validation.setting import check_settings, find_setting, setting

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIB = 1 << 20
LOG_FORMATS = ("text", "json")
COLLECTOR = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")  # no keys in it: they would be shown
MOST_TOOLS = 1024
MOST_PRIORITY = 2**31 - 1
MOST_BATCH_WAIT_MS = 60_000
PREFERRED_BATCH, MOST_BATCH = 5, 4096


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Sizes are bytes, times seconds.  Raises `ConfigError`.

    `keys` and the lines of `key_files` are the API keys, any of which will do; each has a prefix
    cache of its own, unless `share_prefix_cache`.  Without `model_defaults` sampling options that a
    request leaves out are neutral, not the model's.  `sampling_defaults` come before either; None
    removes one.  `parents` are what adapters' base models are called in lists, where that is not
    this model's name.
    """

    # fmt: off
    # Model
    served_model_name: tuple[str, ...] = setting(
        (), "Model", "Names that requests may use for the model.", "NAME ..."
    )
    chat_template: str = setting(
        "", "Model", "A file with a chat template, or the template itself.", "FILE|TEXT",
        special=True
    )
    tool_call_parser: str = setting(
        "auto", "Model", "Format of tool calls: auto, none, hermes, mistral, ...", "NAME"
    )
    reasoning_parser: str = setting(
        "auto", "Model", "Format of reasoning: auto, none, qwen3, mistral, ...", "NAME"
    )
    thinking_percent: int = setting(
        50, "Model", "Share of max_tokens for reasoning before a required tool call.", "PERCENT",
        high=100
    )
    template_defaults: Mapping[str, Any] = setting(
        {}, "Model", 'Variables of the chat template: {"enable_thinking": false}.', "JSON",
        kind="object", option="default-chat-template-kwargs", special=True
    )
    # Engine
    target_step_time: float = setting(
        0.2, "Engine", "Target time (s) of an engine step.", "SECONDS"
    )
    max_prefill_delay: float = setting(
        3.0, "Engine", "Prefill delay (s) after which every other step is prefill-only.", "SECONDS"
    )
    coalesce_requests: bool = setting(
        True, "Engine", "Compute identical running requests of one tenant once."
    )
    batch_wait_ms: int = setting(
        0, "Engine", "Max time (ms) that requests without a stream wait for a batch; 0: none.",
        "MS", low=0, high=MOST_BATCH_WAIT_MS
    )
    preferred_batch: int = setting(
        PREFERRED_BATCH, "Engine", "Waiting requests that start such a batch at once.", "N", low=2,
        high=MOST_BATCH
    )
    overload_steps: str = setting(
        "", "Engine",
        "Steps before requests are refused: max_tokens=N,model=NAME,no_speculation.", "STEP,..."
    )
    overload_percent: int = setting(
        50, "Engine", "Share of the queue from which --overload-steps apply.", "PERCENT", high=99
    )
    token_cache_bytes: int = setting(
        TOKEN_CACHE, "Engine", "Max size of the token ids kept of earlier prompts; 0: none.",
        "SIZE", kind="size", low=0
    )
    # Replicas
    replicas: int = setting(
        1, "Replicas", "Copies of the model, each with an engine process of its own, on Ray.", "N",
        high=MOST_REPLICAS
    )
    autoscale: str = setting(
        "", "Replicas", "Least and most replicas; how many run depends on the load.", "MIN:MAX"
    )
    ray_address: str = setting(
        "", "Replicas", "Ray cluster that runs the replicas: HOST:PORT, or auto.", "HOST:PORT",
        words="one of this machine, for as long as the server runs"
    )
    routing: str = setting(
        "prefix", "Replicas", "Which replica gets a request: that with the longest cached prefix, "
        "each in turn, or the less busy of two.", "prefix|round-robin|power-of-two",
        choices=tuple(POLICIES)
    )
    # HTTP
    host: str = setting("127.0.0.1", "HTTP", "Address to listen on.", "ADDRESS")
    port: int = setting(
        8000, "HTTP", "Port to listen on; 0: any free port.", "PORT", low=0, high=65535
    )
    uds: str = setting("", "HTTP", "Unix socket to listen on, instead of a port.", "PATH")
    ssl_certfile: str = setting(
        "", "HTTP", "File with a certificate (PEM), to serve HTTPS.", "FILE"
    )
    ssl_keyfile: str = setting("", "HTTP", "File with the key of the certificate.", "FILE")
    root_path: str = setting("", "HTTP", "Prefix of paths that a proxy in front removes.", "PATH")
    keys: tuple[str, ...] = setting(
        (), "HTTP", "Keys that clients may send.", "KEY ...", option="api-key", special=True
    )
    key_files: tuple[str, ...] = setting(
        (), "HTTP", "Files with one key a line, read again on SIGHUP.", "FILE ...",
        option="api-key-file", special=True
    )
    share_prefix_cache: bool = setting(False, "HTTP", "Share one prefix cache among all keys.")
    insecure: bool = setting(False, "HTTP", "Listen on a network without a key.")
    allowed_hosts: tuple[str, ...] = setting(
        (), "HTTP", "More names to accept in the Host header.", "NAME ..."
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "HTTP", "Web pages that may send requests: https://page.example, or *.", "ORIGIN ...",
        also=("--allowed-origin",)
    )
    allowed_methods: tuple[str, ...] = setting(
        ("GET", "POST"), "HTTP", "Methods that web pages may use: GET POST, or *.", "METHOD ..."
    )
    allowed_headers: tuple[str, ...] = setting(
        ("*",), "HTTP", "Headers that web pages may send: names, or *.", "NAME ..."
    )
    allow_credentials: bool = setting(False, "HTTP", "Let web pages send cookies and credentials.")
    open_metrics: bool = setting(False, "HTTP", "Serve /metrics without a key.")
    allow_pull: bool = setting(
        False, "HTTP", "Let clients fetch models of the Hub (/api/pull), to be served."
    )
    ignore_unknown_fields: bool = setting(
        False, "HTTP", "Ignore unknown request fields and list them in X-Ignored-Params."
    )
    stream_interval: int = setting(
        1, "HTTP", "Tokens in each chunk of a stream after the first.", "TOKENS"
    )
    enable_force_include_usage: bool = setting(False, "HTTP", "End every stream with its usage.")
    # Log
    enable_log_requests: bool = setting(
        True, "Log", "Log a line for each request, without prompts."
    )
    log_format: str = setting("text", "Log", "Format of the log.", "text|json", choices=LOG_FORMATS)
    log_file: str = setting("", "Log", "File for the log, instead of stderr.", "PATH")
    log_file_bytes: int = setting(
        64 * MIB, "Log", "Size at which the file becomes PATH.1 and a new one begins.", "SIZE",
        kind="size", low=64 << 10
    )
    # Monitoring
    otlp_traces_endpoint: str = setting(
        "", "Monitoring", "Send traces to this OpenTelemetry collector.", "URL"
    )
    price_per_kwh: float = setting(
        0.0, "Monitoring", "Price of a kilowatt hour of energy; 0: unknown.", "PRICE", low=0
    )
    price_per_hour: float = setting(
        0.0, "Monitoring", "Price of an hour of this machine; 0: unknown.", "PRICE", low=0
    )
    price_input: float = setting(
        0.0, "Monitoring", "Cloud price of a million prompt tokens; 0: unknown.", "PRICE", low=0
    )
    price_output: float = setting(
        0.0, "Monitoring", "Cloud price of a million output tokens; 0: unknown.", "PRICE", low=0
    )
    # Limits
    max_queued_requests: int = setting(
        512, "Limits", "Max requests that wait in the queue.", "N", also=("--max-num-queued-reqs",)
    )
    max_queued_tokens: int = setting(
        1_000_000, "Limits", "Max prompt tokens that wait in the queue.", "N", kind="count",
        also=("--max-num-queued-tokens",)
    )
    queue_timeout: float = setting(
        300.0, "Limits", "Max time (s) of a request in the queue.", "SECONDS"
    )
    request_timeout: float = setting(
        600.0, "Limits", "Max time (s) until a response is complete.", "SECONDS"
    )
    shutdown_timeout: float = setting(
        30.0, "Limits", "Time (s) for running requests to finish after SIGTERM.", "SECONDS"
    )
    engine_timeout: float = setting(
        60.0, "Limits", "Max time (s) without progress before /health returns 503.", "SECONDS"
    )
    max_body_bytes: int = setting(
        8 * MIB, "Limits", "Max size of a request body.", "SIZE", kind="size"
    )
    max_total_body_bytes: int = setting(
        256 * MIB, "Limits", "Max size of all request bodies together.", "SIZE", kind="size"
    )
    max_body_values: int = setting(
        1 << 18, "Limits", "Max JSON values in a request body.", "N", kind="count"
    )
    body_timeout: float = setting(
        30.0, "Limits", "Max time (s) to receive a request body.", "SECONDS"
    )
    max_tokenize_bytes: int = setting(
        256 << 10, "Limits", "Max size of a text for /tokenize.", "SIZE", kind="size"
    )
    max_header_bytes: int = setting(
        64 << 10, "Limits", "Max size of the request headers.", "SIZE", kind="size"
    )
    header_timeout: float = setting(
        15.0, "Limits", "Max time (s) to receive the request headers.", "SECONDS"
    )
    send_timeout: float = setting(
        60.0, "Limits", "Close a connection whose client reads nothing for this long (s).",
        "SECONDS"
    )
    ping_interval: float = setting(
        15.0, "Limits", "Interval (s) of pings on a silent stream; 0: no pings.", "SECONDS", low=0
    )
    max_stream_buffer_tokens: int = setting(
        8192, "Limits", "Max tokens buffered per stream, ahead of its client.", "N", kind="count"
    )
    max_send_buffer_bytes: int = setting(
        256 * MIB, "Limits", "Max unsent bytes of all responses together.", "SIZE", kind="size"
    )
    max_prompts: int = setting(1024, "Limits", "Max prompts of a request.", "N")
    max_choices: int = setting(128, "Limits", "Max choices (n) per prompt.", "N", high=MAX_CHOICES)
    max_request_choices: int = setting(
        2048, "Limits", "Max choices of a request: prompts times n.", "N"
    )
    max_stop_strings: int = setting(
        4, "Limits", "Max stop strings of a request.", "N", high=MAX_STOPS
    )
    max_stop_bytes: int = setting(
        1024, "Limits", "Max size of a stop string.", "SIZE", kind="size", high=4 * LONGEST_STOP
    )
    max_logit_bias: int = setting(1024, "Limits", "Max entries of logit_bias.", "N")
    max_logprobs: int = setting(
        20, "Limits", "Max log-probabilities per token.", "N", high=MAX_LOGPROBS
    )
    max_tools: int = setting(128, "Limits", "Max tools of a request.", "N", high=MOST_TOOLS)
    max_request_tokens: int = setting(
        4_000_000, "Limits", "Max output tokens of a request: choices times max_tokens.", "N",
        kind="count"
    )
    max_response_prompt_logprobs: int = setting(
        1 << 19, "Limits", "Max prompt log-probabilities in a response.", "N", kind="count"
    )
    max_response_logprobs: int = setting(
        2_000_000, "Limits", "Max output log-probabilities in a response.", "N", kind="count"
    )
    max_schema_bytes: int = setting(
        64 << 10, "Limits", "Max size of a schema or grammar.", "SIZE", kind="size", high=LONGEST
    )
    max_schema_depth: int = setting(
        64, "Limits", "Max nesting depth of a schema.", "N", high=DEEPEST
    )
    schema_compile_timeout: float = setting(
        5.0, "Limits", "Max time (s) to compile a schema.", "SECONDS"
    )
    template_timeout: float = setting(
        SECONDS, "Limits", "Max time (s) to render a chat template.", "SECONDS"
    )
    max_template_growth: int = setting(
        GROWTH, "Limits", "Max prompt characters per character of the messages.", "N", kind="count",
        high=MOST_CHARACTERS
    )
    max_priority: int = setting(
        MOST_PRIORITY, "Limits", "Max priority of a request, above or below 0; 0: no priorities.",
        "N", low=0, high=MOST_PRIORITY
    )
    max_connections: int = setting(1024, "Limits", "Max open connections.", "N")
    # set by options of the engine
    model_defaults: bool = True
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    # fmt: on

    def __post_init__(self) -> None:
        check_settings(self)
        for known in fields(self):
            found = find_setting(known)
            if found is not None and known.type is float:
                check = check_price if found.unit == "PRICE" else check_seconds
                check(known.name, getattr(self, known.name), found.low)
        parse_overload_steps(self.overload_steps, self.overload_percent)
        check_origins(self)
        self._check_address()
        if self.preferred_batch != PREFERRED_BATCH and not self.batch_wait_ms:
            raise ConfigError(
                "has no effect without a time to wait; give --batch-wait-ms too",
                "preferred_batch",
                value=self.preferred_batch,
            )
        check_replicas(self)
        find_format(self.tool_call_parser, "")
        find_marks(self.reasoning_parser, "")
        names = self.served_model_name
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise ConfigError(
                "is given twice", "served_model_name", value=twice[0], allowed="each once"
            )
        if not self.local and not self.needs_key and not self.insecure:
            raise ConfigError(
                "accepts clients of the network without a key; set --api-key, or --insecure to "
                "allow that",
                "host",
                value=self.host,
            )

    def _check_address(self) -> None:
        if self.allow_pull and not self.local and not self.needs_key:
            raise ConfigError(
                "lets any client of the network fill the disk; set --api-key, or leave it out",
                "allow_pull",
                value=True,
            )
        path = self.root_path
        if path and (not path.startswith("/") or path.endswith("/")):
            near = "/" + path.strip("/")
            raise ConfigError(
                "is not valid",
                "root_path",
                value=path,
                allowed="a path that begins with / and does not end with it",
                hint=f"nearest valid: {(near if near != '/' else '(none)')}",
            )
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ConfigError(
                "is given without a certificate; give --ssl-certfile too",
                "ssl_keyfile",
                value=self.ssl_keyfile,
            )
        if self.otlp_traces_endpoint and not COLLECTOR.fullmatch(self.otlp_traces_endpoint):
            raise ConfigError(
                "is not valid",
                "otlp_traces_endpoint",
                value=self.otlp_traces_endpoint,
                allowed="http://HOST:PORT/PATH or https://HOST:PORT/PATH, without keys",
                hint="nearest valid: http://localhost:4318/v1/traces",
            )

    @property
    def needs_key(self) -> bool:
        """Whether clients must send a key."""
        return bool(self.keys or self.key_files)

    @property
    def several_keys(self) -> bool:
        """Whether there is more than one key, or may be once files have been read again."""
        return len(set(self.keys)) > 1 or bool(self.key_files)

    @property
    def templates(self) -> RenderBounds:
        """What rendering a chat template may cost."""
        return RenderBounds(self.template_timeout, self.max_template_growth)

    @property
    def local(self) -> bool:
        """Whether only this machine is served."""
        return bool(self.uds) or loopback(self.host)

    def url(self, port: int) -> str:
        """Where the server is reached; `port` is the one that it was given."""
        if self.uds:
            return f"unix:{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.ssl_certfile else 'http'}://{host}:{port}"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "ServerSettings":
        return cls(**{name: value for name, value in given.items() if value is not None})


def loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host in LOOPBACK:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
