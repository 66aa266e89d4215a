"""What each option of `flyweight serve` is when it is left out, as help shows it.

Invariant: a value that is in the settings is read from them.
"""

from flyweight.arguments.flags import Flag
from flyweight.config import Settings
from flyweight.server.settings import MIB, ServerSettings

KIB = 1 << 10
DERIVED = {  # where the settings hold no plain value
    "dtype": "auto",
    "quantization": "any",
    "load-format": "auto",
    "generation-config": "auto",
    "max-model-len": "what the model knows and memory holds",
    "kv-cache-memory-bytes": "what is useful and fits",
    "num-gpu-blocks-override": "what is useful and fits",
    "kv-cache-dtype": "auto",
    "threads": "the cores this process may use",
    "scheduling-policy": "priority",
    "speculative-config": "no speculation",
    "seed": "random",
    "served-model-name": "the name of its file, or on the Hub",
    "chat-template": "the model's",
    "api-key": "none, or FLYWEIGHT_API_KEY",
    "allowed-origins": "none",
    "uvicorn-log-level": "info",
    "log-file": "stderr",
}


def default(flag: Flag) -> str:
    """As the option would be written; empty where it is off or has no value."""
    if flag.name in DERIVED:
        return DERIVED[flag.name]
    room, _, name = flag.sets.partition(".")
    value = getattr(ServerSettings() if room == "server" else Settings(), name, None)
    if isinstance(value, bool):
        return "on" if value else ""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(value)
    if flag.kind == "size":
        unit = "MiB" if value >= MIB else "KiB"
        return f"{value / (MIB if value >= MIB else KIB):g}{unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)
