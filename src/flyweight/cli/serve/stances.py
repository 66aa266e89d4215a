"""Options of vLLM's that choose nothing here, each with what is so and why.

Invariant: none is ignored: what is not in this table, and means something here, is in `flags`; what
is in neither is unknown.
"""

from typing import Literal

from flyweight.cli.serve.stance import EVERY, NONE, Stance


def _one(name: str, what: str, also: str = "") -> Stance:
    """A way to spread a model over devices."""
    return Stance(
        name, "text", ("1",), "1", f"one process computes {what}",
        "leave it out, or say 1; --threads sets how many cores are used", (also,) if also else (),
    )  # fmt: skip


def _refused(name: str, kind: Literal["switch", "text"], why: str, instead: str) -> Stance:
    return Stance(name, kind, NONE, "off", why, instead)


def _always(name: str, why: str, active: str = "always") -> Stance:
    """A switch that is on."""
    return Stance(name, "switch", ("on",), active, why, "leave it out")


def _never(name: str, why: str, instead: str = "leave it out", active: str = "never") -> Stance:
    """A switch that is off."""
    return Stance(name, "switch", ("off",), active, why, instead)


def _only(name: str, so: tuple[str, ...], why: str, *also: str) -> Stance:
    """A choice that is made."""
    return Stance(name, "text", so, so[0], why, f"leave it out, or say {' or '.join(so)}", also)


def _any(name: str, active: str, why: str) -> Stance:
    """A number that bounds nothing here."""
    return Stance(name, "text", EVERY, active, why, "say a whole number, or leave it out")


SERVED = (
    _one("tensor-parallel-size", "all of every layer, on all its threads", "-tp"),
    _one("pipeline-parallel-size", "all layers", "-pp"),
    _one("data-parallel-size", "all requests, in one batch", "-dp"),
    Stance(
        "enforce-eager", "switch", ("on",), "always", "there are no graphs to capture on a CPU",
        "leave it out",
    ),
    Stance(
        "trust-remote-code", "switch", ("off",), "never",
        "no code out of a checkpoint is ever run", "leave it out: every family that is served is "
        "part of the package",
    ),
    Stance(
        "enable-chunked-prefill", "switch", ("on",), "always",
        "a long prompt never holds up the others for more than a step",
        "leave it out; --max-num-batched-tokens says how much of a prompt a step may have",
    ),
    Stance(
        "cpu-offload-gb", "text", ("0", "0.0"), "0", "weights are in main memory already",
        "leave it out; --memory-limit bounds what is held",
    ),
    Stance(
        "prefix-caching-hash-algo", "text", ("blake2b",), "blake2b",
        "blocks are found by a chain of BLAKE2b digests", "leave it out, or say blake2b",
    ),
    Stance(
        "enable-per-request-metrics",
        "switch",
        ("on",),
        "always",
        "every answer carries its timings",
        "leave it out",
    ),
    Stance(
        "tokenizer-mode", "text", ("auto",), "auto", "the model's own files say which it is",
        "leave it out, or say auto",
    ),
    Stance(
        "device", "text", ("cpu", "auto"), "cpu", "this engine computes on the CPU",
        "leave it out, or say cpu",
    ),
    Stance("runner", "text", ("auto", "generate"), "generate", "one engine answers and embeds",
           "leave it out: /v1/embeddings is served beside"),
    Stance(
        "max-num-partial-prefills", "text", NONE, "no limit",
        "any number of prompts may be partly computed", "--max-num-batched-tokens and "
        "--long-prefill-token-threshold bound what a step has of them",
    ),
    Stance(
        "enable-auto-tool-choice", "switch", ("on",), "always",
        "a request that declares tools may call them", "tool_choice of a request says none",
    ),
    Stance(
        "max-loras", "text", EVERY, "all", "all adapters are held, and any of them may share a "
        "step", "say a whole number, or leave it out",
    ),
    Stance(
        "max-lora-rank", "text", EVERY, "each its own", "nothing is reserved by rank",
        "say a whole number, or leave it out",
    ),
    Stance(
        "tokenizer", "text", NONE, "the model's own", "the vocabulary is the model's own",
        "leave it out, or say the model again; its files are read from beside the weights",
    ),
    _refused("otlp-traces-endpoint", "text", "nothing is sent anywhere",
             "/metrics and the timings of each answer have the figures"),
    _refused("swap-space", "text", "what is preempted is computed again", "leave it out"),
    _refused("ssl-keyfile", "text", "TLS is not built in", "put a proxy in front of 127.0.0.1"),
    _refused("ssl-certfile", "text", "TLS is not built in", "put a proxy in front of 127.0.0.1"),
    _refused("root-path", "text", "paths are served as they are", "let the proxy take it off"),
    _refused("hf-token", "text", "a secret does not belong on a command line", "set HF_TOKEN"),
    _refused("download-dir", "text", "models are kept where the Hub's tools keep them",
             "set HF_HOME"),
    _refused("hf-overrides", "text", "a model's config is taken as it is", "edit its config.json"),
)  # fmt: skip
LOGGED = (
    _always("disable-log-stats", "no figures go into the log: /metrics has them"),
    _never("enable-log-outputs", "nobody's text goes into the log"),
    _any("max-log-len", "0", "no prompt is logged at all"),
    _refused("log-config-file", "text", "the log has one shape", "use --log-format"),
    _refused("collect-detailed-traces", "text", "nothing is sent anywhere",
             "/debug/steps and the timings of each answer have the figures"),
    _refused("show-hidden-metrics-for-version", "text", "none are hidden", "leave it out"),
)  # fmt: skip
HTTP = (
    _only("api-server-count", ("1",), "one process speaks HTTP", "-asc"),
    _never("disable-frontend-multiprocessing", "HTTP and engine are two processes, so that one "
           "never waits for the other"),
    _always("enable-request-id-headers", "every answer has an X-Request-Id"),
    _always("enable-prompt-tokens-details", "usage always has cached_tokens"),
    _always("enable-server-load-tracking", "/load tells of it, and /metrics of more"),
    _never("enable-tokenizer-info-endpoint", "there is no such endpoint", "use /tokenize"),
    _never("disable-fastapi-docs", "the document needs the key, and its page holds nothing",
           "leave it out", "served"),
    _only("response-role", ("assistant",), "an answer is the assistant's"),
    _only("chat-template-content-format", ("auto",), "the template says what it takes"),
    _never("trust-request-chat-template", "no template of a request is run",
           "give the server one: --chat-template"),
    _always("exclude-tools-when-tool-choice-none", "with tool_choice none a model is shown none"),
    _refused("tool-parser-plugin", "text", "no code but the package's is run",
             "see --tool-call-parser"),
    _refused("reasoning-parser-plugin", "text", "no code but the package's is run",
             "see --reasoning-parser"),
    _refused("middleware", "text", "no code but the package's is run", "put a proxy in front"),
    _refused("tool-server", "text", "tools are the client's to run", "leave it out"),
    _refused("uds", "text", "it listens on TCP alone", "put a proxy in front of 127.0.0.1"),
    _refused("ssl-ca-certs", "text", "TLS is not built in", "put a proxy in front of 127.0.0.1"),
    _refused("h11-max-incomplete-event-size", "text", "HTTP is not read by h11",
             "use --max-header-bytes"),
    _refused("h11-max-header-count", "text", "HTTP is not read by h11", "use --max-header-bytes"),
)  # fmt: skip
MODEL = (
    _only("task", ("auto", "generate"), "one engine answers and embeds"),
    _only("convert", ("auto", "none"), "/v1/embeddings is served beside"),
    _only("model-impl", ("auto",), "a family is computed in one way"),
    _only("config-format", ("auto",), "the files say which it is"),
    _only("logprobs-mode", ("raw_logprobs",), "they are the model's own, before any option"),
    _only("lora-dtype", ("auto",), "adapters are computed in float32"),
    _any("max-cpu-loras", "all", "all adapters are held"),
    _never("fully-sharded-loras", "one process computes all", active="off"),
    _never("skip-tokenizer-init", "text is what is asked", active="off"),
    _never("enable-prompt-embeds", "prompts are text or ids", active="off"),
    _never("enable-sleep-mode", "memory is given back when the server ends", "use flyweight stop",
           "off"),
    _refused("tokenizer-revision", "text", "the vocabulary is the model's own", "use --revision"),
    _refused("code-revision", "text", "no code out of a checkpoint is ever run", "use --revision"),
    _refused("hf-config-path", "text", "a model's config is its own", "edit its config.json"),
    _refused("rope-scaling", "text", "a model's config is taken as it is", "edit its config.json"),
    _refused("rope-theta", "text", "a model's config is taken as it is", "edit its config.json"),
    _refused("logits-processors", "text", "no code but the package's is run",
             "logit_bias, bad_words and allowed_token_ids of a request say what may be drawn"),
    _refused("limit-mm-per-prompt", "text", "models of text alone are served", "leave it out"),
    _refused("allowed-local-media-path", "text", "no file is read for a request", "leave it out"),
    _refused("model-loader-extra-config", "text", "weights are read in one way", "leave it out"),
    _refused("ignore-patterns", "text", "what is fetched is what is read", "leave it out"),
    _only("safetensors-load-strategy", ("lazy",), "weights are mapped, and read as they are used"),
    _only("pt-load-map-location", ("cpu",), "this engine computes on the CPU"),
    _always("use-tqdm-on-load", "progress is told of after two seconds"),
)  # fmt: skip
COMPUTED = (
    _only("distributed-executor-backend", ("uni",), "one process computes"),
    _only("nnodes", ("1",), "one machine computes"),
    _only("node-rank", ("0",), "one machine computes"),
    _never("headless", "it is a server of its own", "leave it out", "off"),
    _never("enable-expert-parallel", "one process computes all experts", active="off"),
    _always("disable-custom-all-reduce", "one process computes: nothing is reduced over several"),
    _only("guided-decoding-backend", ("guidance", "auto"), "grammars are llguidance's"),
    _only("structured-outputs-config", ('{"backend":"guidance"}', '{"backend":"auto"}'),
          "grammars are llguidance's"),
    _any("max-seq-len-to-capture", "0", "there are no graphs to capture on a CPU"),
    _refused("cuda-graph-sizes", "text", "there are no graphs to capture on a CPU",
             "leave it out"),
    _refused("compilation-config", "text", "kernels are compiled with the package",
             "leave it out"),
    _refused("attention-backend", "text", "there is one kind of attention on a CPU",
             "leave it out"),
    _never("calculate-kv-scales", "K/V is kept in 16 or 32 bits, without scales", active="off"),
    _always("disable-hybrid-kv-cache-manager", "all layers share one kind of blocks"),
    _never("async-scheduling", "a step is planned once the one before is known", active="off"),
    _only("num-scheduler-steps", ("1",), "every token is sent as it comes"),
    _only("scheduler-delay-factor", ("0", "0.0"), "a prompt begins as soon as there is room"),
    _only("preemption-mode", ("recompute",), "what is preempted is computed again"),
    _refused("max-long-partial-prefills", "text", "any number of prompts may be partly computed",
             "--long-prefill-token-threshold bounds what a step has of each"),
    _refused("scheduler-cls", "text", "no code but the package's is run", "leave it out"),
    _refused("worker-cls", "text", "no code but the package's is run", "leave it out"),
    _refused("kv-transfer-config", "text", "K/V is not sent between machines", "leave it out"),
    _refused("kv-events-config", "text", "nothing is sent anywhere",
             "--kv-cache-metrics times blocks for /metrics"),
    _refused("additional-config", "text", "it means nothing without a platform's plugin",
             "leave it out"),
)  # fmt: skip
STANCES = SERVED + LOGGED + HTTP + MODEL + COMPUTED
