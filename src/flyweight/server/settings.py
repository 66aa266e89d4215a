"""Every limit of the server, with its default and its range; what `flyweight serve` takes beside
the engine's `Settings`.

Invariant: a `ServerSettings` that exists is valid.  Nothing but the standard library and names.
"""

from dataclasses import dataclass, fields
from typing import Any

from flyweight.config import whole
from flyweight.errors import ConfigError
from flyweight.structured import DEEPEST, LONGEST
from flyweight.text.tools.formats import format_of, marks_of
from flyweight.types import MAX_LOGPROBS

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIB = 1 << 20
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Sizes are bytes, times seconds.  Raises `ConfigError`.

    `keys` are the API keys, any of which will do; without one, only this machine is served unless
    `insecure`.  `queue_requests` and `queue_tokens` may wait to be computed; more is refused.
    `chat_template` stands for the model's own; without `model_defaults` sampling options that a
    request leaves out are neutral, not the model's.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    open_metrics: bool = False
    log_requests: bool = True
    log_format: str = "text"
    lenient: bool = False
    chat_template: str = ""
    model_defaults: bool = True
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    step_seconds: float = 0.2
    queue_requests: int = 512
    queue_tokens: int = 1_000_000
    request_seconds: float = 600.0
    drain_seconds: float = 30.0
    stuck_seconds: float = 60.0
    body_bytes: int = 8 * MIB
    body_values: int = 1 << 18
    body_seconds: float = 30.0
    header_bytes: int = 64 << 10
    header_seconds: float = 15.0
    stalled_seconds: float = 60.0
    prompts: int = 1024
    choices: int = 128
    request_choices: int = 2048
    stops: int = 4
    biases: int = 1024
    logprobs: int = MAX_LOGPROBS
    tools: int = 128
    request_tokens: int = 4_000_000
    schema_bytes: int = 64 << 10
    schema_depth: int = 64
    compile_seconds: float = 5.0
    connections: int = 1024

    def __post_init__(self) -> None:
        whole("port", self.port, 0, 65535)
        whole("logprobs", self.logprobs, 1, MAX_LOGPROBS)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and field.name != "port":
                whole(field.name, value, 1)
            if field.type is float and not (isinstance(value, int | float) and 0 < value < 1e9):
                raise ConfigError(
                    f"{field.name} = {value!r} is out of range; allowed: above 0 seconds"
                )
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(
                f"log_format = {self.log_format!r} is unknown; allowed: {', '.join(LOG_FORMATS)}"
            )
        whole("schema_bytes", self.schema_bytes, 1, LONGEST)
        whole("schema_depth", self.schema_depth, 1, DEEPEST)
        format_of(self.tool_call_parser, "")
        marks_of(self.reasoning_parser, "")
        if self.host not in LOOPBACK and not self.keys and not self.insecure:
            raise ConfigError(
                f"host = {self.host!r} would let anyone on the network in; give an --api-key, "
                "or --insecure if that is what you want"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine is served."""
        return self.host in LOOPBACK

    @classmethod
    def of(cls, given: dict[str, Any]) -> "ServerSettings":
        return cls(**{name: value for name, value in given.items() if value is not None})
