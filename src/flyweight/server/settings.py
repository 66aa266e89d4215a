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
    "ping_seconds": (0, None),  # a time that may be 0; all others are above it
    "port": (0, 65535),
    "log_file_bytes": (64 << 10, None),
    "choices": (1, MAX_CHOICES),
    "stops": (1, MAX_STOPS),
    "stop_bytes": (1, 4 * LONGEST_STOP),
    "logprobs": (1, MAX_LOGPROBS),
    "tools": (1, MOST_TOOLS),
    "thinking_percent": (1, 100),
    "priorities": (0, MOST_PRIORITY),
    "schema_bytes": (1, LONGEST),
    "schema_depth": (1, DEEPEST),
    "template_growth": (1, MOST_CHARACTERS),
}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Sizes are bytes, times seconds.  Raises `ConfigError`.

    `root_path` is a prefix of paths that a proxy in front takes off.  `uds` is a Unix socket to
    listen on, in place of `host` and `port`; with `ssl_certfile` (and `ssl_keyfile`) it is HTTPS.
    `keys` are the API keys, any of which will do; without one, only this machine is served unless
    `insecure`.  Of several keys each has a prefix cache of its own, unless `share_prefix_cache`.
    `queue_requests` and `queue_tokens` may wait to be computed, for `queue_seconds`; more is
    refused.  A request's priority is at most `priorities` from 0, either way; 0: all come in order.
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
    names: tuple[str, ...] = ()
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
    force_include_usage: bool = False
    log_requests: bool = True
    log_format: str = "text"
    log_file: str = ""
    log_file_bytes: int = 64 * MIB
    lenient: bool = False
    chat_template: str = ""
    model_defaults: bool = True
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    template_defaults: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    thinking_percent: int = 50
    step_seconds: float = 0.2
    patience_seconds: float = 3.0
    queue_requests: int = 512
    queue_tokens: int = 1_000_000
    queue_seconds: float = 300.0
    request_seconds: float = 600.0
    drain_seconds: float = 30.0
    stuck_seconds: float = 60.0
    body_bytes: int = 8 * MIB
    bodies_bytes: int = 256 * MIB
    body_values: int = 1 << 18
    body_seconds: float = 30.0
    tokenize_bytes: int = 256 << 10
    header_bytes: int = 64 << 10
    header_seconds: float = 15.0
    stalled_seconds: float = 60.0
    unread_tokens: int = 8192
    unread_bytes: int = 256 * MIB
    ping_seconds: float = 15.0
    prompts: int = 1024
    choices: int = 128
    request_choices: int = 2048
    stops: int = 4
    stop_bytes: int = 1024
    biases: int = 1024
    logprobs: int = 20
    tools: int = 128
    request_tokens: int = 4_000_000
    prompt_scores: int = 1 << 19
    answer_scores: int = 2_000_000
    schema_bytes: int = 64 << 10
    schema_depth: int = 64
    compile_seconds: float = 5.0
    template_seconds: float = SECONDS
    template_growth: int = GROWTH
    priorities: int = MOST_PRIORITY
    connections: int = 1024

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
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            raise ConfigError("is given twice", "names", value=twice[0], allowed="each once")
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
        return RenderBounds(self.template_seconds, self.template_growth)

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
