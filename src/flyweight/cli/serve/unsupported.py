"""Options of vLLM's server that choose nothing here, each with what is so and why; the engine's
are in `arguments`.

Invariant: none is ignored: what is in neither table, and means something here, is in `flags`.
"""

from flyweight.arguments import stances
from flyweight.arguments.stance import Support
from flyweight.arguments.stances import always, never, only, refused, unbounded

LOGGED = (
    never("enable-log-outputs", "nobody's text goes into the log"),
    unbounded("max-log-len", "0", "no prompt is logged at all"),
    refused("log-config-file", "text", "the log has one shape", "use --log-format"),
    refused("collect-detailed-traces", "text", "nothing is sent anywhere",
            "/debug/steps and the timings of each answer have the figures"),
    refused("show-hidden-metrics-for-version", "text", "none are hidden", "leave it out"),
)  # fmt: skip
HTTP = (
    never("headless", "it is a server of its own", "leave it out", "off"),
    Support(
        "enable-per-request-metrics",
        "switch",
        ("on",),
        "always",
        "every answer carries its timings",
        "leave it out",
    ),
    Support(
        "enable-auto-tool-choice", "switch", ("on",), "always",
        "a request that declares tools may call them", "tool_choice of a request says none",
    ),
    only("api-server-count", ("1",), "one process speaks HTTP", "-asc"),
    never("disable-frontend-multiprocessing", "HTTP and engine are two processes, so that one "
           "never waits for the other"),
    always("enable-request-id-headers", "every answer has an X-Request-Id"),
    always("enable-prompt-tokens-details", "usage always has cached_tokens"),
    always("enable-server-load-tracking", "/load tells of it, and /metrics of more"),
    always("enable-tokenizer-info-endpoint", "/tokenizer_info is served, with the key if any"),
    never("disable-fastapi-docs", "the document needs the key, and its page holds nothing",
           "leave it out", "served"),
    only("response-role", ("assistant",), "an answer is the assistant's"),
    only("chat-template-content-format", ("auto",), "the template says what it takes"),
    never("trust-request-chat-template", "no template of a request is run",
           "give the server one: --chat-template"),
    always("exclude-tools-when-tool-choice-none", "with tool_choice none a model is shown none"),
    refused("tool-parser-plugin", "text", "no code but the package's is run",
            "see --tool-call-parser"),
    refused("reasoning-parser-plugin", "text", "no code but the package's is run",
            "see --reasoning-parser"),
    refused("middleware", "text", "no code but the package's is run", "put a proxy in front"),
    refused("tool-server", "text", "tools are the client's to run", "leave it out"),
    refused("ssl-ca-certs", "text", "certificates of clients are not checked",
            "leave it out, or put a proxy in front of 127.0.0.1"),
    refused("h11-max-incomplete-event-size", "text", "HTTP is not read by h11",
            "use --max-header-bytes"),
    refused("h11-max-header-count", "text", "HTTP is not read by h11", "use --max-header-bytes"),
)  # fmt: skip
STANCES = stances.STANCES + LOGGED + HTTP
