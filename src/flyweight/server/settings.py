"""Every limit of the server, with its default and its range; what `flyweight serve` takes beside
the engine's `Settings`.

Invariant: a `ServerSettings` that exists is valid.  Nothing but the standard library and names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any

from flyweight.config import whole
from flyweight.errors import ConfigError
from flyweight.params.structured import DEEPEST, LONGEST
from flyweight.text.meter import GROWTH, MOST_CHARACTERS, SECONDS, RenderBounds
from flyweight.text.tools.formats import find_format, find_marks
from flyweight.types import LONGEST_STOP, MAX_CHOICES, MAX_LOGPROBS, MAX_STOPS

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIB = 1 << 20
LOG_FORMATS = ("text", "json")
ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@,\x00-\x1f\x7f-\U0010ffff]+/?")
MOST_TOOLS = 1024
MOST_SECONDS = 10**9
MOST_PRIORITY = 2**31 - 1
RANGES: dict[str, tuple[int, int | None]] = {  # all others begin at 1 and have no end
    "ping_interval": (0, None),  # a time that may be 0; all others are above it
    "port": (0, 65535),
    "log_file_bytes": (64 << 10, None),
    "max_choices": (1, MAX_CHOICES),
    "max_stop_strings": (1, MAX_STOPS),
    "max_stop_bytes": (1, 4 * LONGEST_STOP),
    "max_logprobs": (1, MAX_LOGPROBS),
    "max_tools": (1, MOST_TOOLS),
    "thinking_percent": (1, 100),
    "max_priority": (0, MOST_PRIORITY),
    "max_schema_bytes": (1, LONGEST),
    "max_schema_depth": (1, DEEPEST),
    "max_template_growth": (1, MOST_CHARACTERS),
}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Sizes are bytes, times seconds.  Raises `ConfigError`.

    `root_path` is a prefix of paths that a proxy in front takes off.  `uds` is a Unix socket to
    listen on, in place of `host` and `port`; with `ssl_certfile` (and `ssl_keyfile`) it is HTTPS.
    `keys` are the API keys, any of which will do; without one, only this machine is served unless
    `insecure`.  Of several keys each has a prefix cache of its own, unless `share_prefix_cache`.
    `max_queued_requests` and `max_queued_tokens` may wait to be computed, for `queue_timeout`; more
    is refused.  A request's priority is at most `max_priority` from 0, either way; 0: all
    come in order.
    `chat_template` stands for the model's own; without `model_defaults` sampling options that a
    request leaves out are neutral, not the model's.  `sampling_defaults` come before
    either, None taking one away; `template_defaults` are variables of the chat template that a
    request does not set.  `parents` are what adapters' base models are called in lists, where that
    is not this model's name.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    root_path: str = ""
    uds: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    served_model_name: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("GET", "POST")
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    share_prefix_cache: bool = False
    open_metrics: bool = False
    stream_interval: int = 1
    enable_force_include_usage: bool = False
    enable_log_requests: bool = True
    log_format: str = "text"
    log_file: str = ""
    log_file_bytes: int = 64 * MIB
    ignore_unknown_fields: bool = False
    chat_template: str = ""
    model_defaults: bool = True
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    template_defaults: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    thinking_percent: int = 50
    target_step_time: float = 0.2
    max_prefill_delay: float = 3.0
    max_queued_requests: int = 512
    max_queued_tokens: int = 1_000_000
    queue_timeout: float = 300.0
    request_timeout: float = 600.0
    shutdown_timeout: float = 30.0
    engine_timeout: float = 60.0
    max_body_bytes: int = 8 * MIB
    max_total_body_bytes: int = 256 * MIB
    max_body_values: int = 1 << 18
    body_timeout: float = 30.0
    max_tokenize_bytes: int = 256 << 10
    max_header_bytes: int = 64 << 10
    header_timeout: float = 15.0
    send_timeout: float = 60.0
    max_stream_buffer_tokens: int = 8192
    max_send_buffer_bytes: int = 256 * MIB
    ping_interval: float = 15.0
    max_prompts: int = 1024
    max_choices: int = 128
    max_request_choices: int = 2048
    max_stop_strings: int = 4
    max_stop_bytes: int = 1024
    max_logit_bias: int = 1024
    max_logprobs: int = 20
    max_tools: int = 128
    max_request_tokens: int = 4_000_000
    max_response_prompt_logprobs: int = 1 << 19
    max_response_logprobs: int = 2_000_000
    max_schema_bytes: int = 64 << 10
    max_schema_depth: int = 64
    schema_compile_timeout: float = 5.0
    template_timeout: float = SECONDS
    max_template_growth: int = GROWTH
    max_priority: int = MOST_PRIORITY
    max_connections: int = 1024

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            if known.type is int:
                whole(known.name, value, *RANGES.get(known.name, (1, None)))
            if known.type is float:
                _seconds(known.name, value, RANGES.get(known.name, (1, None))[0])
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(
                "is unknown",
                "log_format",
                value=self.log_format,
                allowed=f"{', '.join(LOG_FORMATS)}",
            )
        self._check_origins()
        self._check_address()
        find_format(self.tool_call_parser, "")
        find_marks(self.reasoning_parser, "")
        names = self.served_model_name
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise ConfigError(
                "is given twice", "served_model_name", value=twice[0], allowed="each once"
            )
        if not self.local and not self.keys and not self.insecure:
            raise ConfigError(
                "would let anyone on the network in; give an --api-key, or --insecure if "
                "that is what you want",
                "host",
                value=self.host,
            )

    def _check_address(self) -> None:
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

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
                near = re.sub(r"^(?:[a-z]+://)?([^/?#]*).*", r"\1", origin, flags=re.S)
                hint = f"; nearest valid: https://{near}" if near else ""
                raise ConfigError(
                    "is not valid",
                    "allowed_origins",
                    value=origin,
                    allowed=f"scheme://host, scheme://host:port, or * for all{hint}",
                )
        if "*" not in self.allowed_origins:
            return
        if self.allow_credentials:
            raise ConfigError(
                "and allow_credentials exclude each other: browsers reject this; list the origins",
                "allowed_origins",
                value="*",
            )
        if not self.keys and not self.insecure:
            raise ConfigError(
                "would let any web page in a local browser send requests; list the origins, give "
                "an --api-key, or use --insecure",
                "allowed_origins",
                value="*",
            )

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
    """Whether nobody but this machine reaches an address."""
    if host in LOOPBACK:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _seconds(name: str, value: object, least: int) -> None:
    """Raises `ConfigError` unless `value` is a time; 0 is one where `least` is."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise ConfigError("is not valid", name, value=value, allowed="seconds, above 0")
    if not (0 < value < MOST_SECONDS or value == least == 0):
        near = least if value <= 0 else MOST_SECONDS - 1
        allowed = "0 seconds or more" if least == 0 else "above 0 seconds"
        raise ConfigError(
            "is out of range",
            name,
            value=value,
            allowed=f"{allowed}, below {MOST_SECONDS}",
            hint=f"nearest valid: {near}",
        )
