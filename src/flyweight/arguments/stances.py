"""Options of vLLM's that choose nothing here, each with what is so and why.

Invariant: none is ignored: what is not in this table, and means something here, is in `flags`; what
is in neither is unknown.
"""

from typing import Literal

from flyweight.arguments.stance import ANY, BOTH, EVERY, NONE, ZEROS, Support


def one(name: str, what: str, also: str = "") -> Support:
    """A way to spread a model over devices."""
    return Support(
        name, "text", ("1",), "1", f"one process computes {what}",
        "leave it out, or say 1; --threads sets how many cores are used", (also,) if also else (),
    )  # fmt: skip


def either(name: str, active: str, why: str) -> Support:
    """A switch that changes nothing here, on or off."""
    return Support(name, "switch", BOTH, active, why, "leave it out")


def refused(name: str, kind: Literal["switch", "text"], why: str, instead: str) -> Support:
    return Support(name, kind, NONE, "off", why, instead)


def always(name: str, why: str, active: str = "always") -> Support:
    """A switch that is on."""
    return Support(name, "switch", ("on",), active, why, "leave it out")


def never(name: str, why: str, instead: str = "leave it out", active: str = "never") -> Support:
    """A switch that is off."""
    return Support(name, "switch", ("off",), active, why, instead)


def only(name: str, so: tuple[str, ...], why: str, *also: str) -> Support:
    """A choice that is made."""
    return Support(name, "text", so, so[0], why, f"leave it out, or say {' or '.join(so)}", also)


def unbounded(name: str, active: str, why: str) -> Support:
    """A number that bounds nothing here."""
    return Support(name, "text", EVERY, active, why, "say a whole number, or leave it out")


def accepted(name: str, why: str) -> Support:
    """A value of any kind that changes no answer."""
    return Support(name, "text", ANY, "no effect", why, "leave it out")


SERVED = (
    one("tensor-parallel-size", "all of every layer, on all its threads", "-tp"),
    one("pipeline-parallel-size", "all layers", "-pp"),
    one("data-parallel-size", "all requests, in one batch", "-dp"),
    either("enforce-eager", "always", "there are no graphs to capture on a CPU"),
    either("trust-remote-code", "never used", "no code from a checkpoint is run; every family that "
           "is served is part of the package"),
    Support(
        "deterministic", "switch", ("on",), "always",
        "every row is computed the same way in any batch; there is no other kernel to switch to",
        "leave it out: an answer does not depend on what else runs",
    ),
    Support(
        "enable-chunked-prefill", "switch", ("on",), "always",
        "a long prompt never holds up the others for more than a step",
        "leave it out; --max-num-batched-tokens says how much of a prompt a step may have",
    ),
    Support(
        "cpu-offload-gb", "text", ("0", "0.0"), "0", "weights are in main memory already",
        "leave it out; --memory-limit bounds what is held",
    ),
    Support(
        "prefix-caching-hash-algo", "text", ("blake2b",), "blake2b",
        "blocks are found by a chain of BLAKE2b digests", "leave it out, or say blake2b",
    ),
    Support(
        "tokenizer-mode", "text", ("auto",), "auto", "the model's own files say which it is",
        "leave it out, or say auto",
    ),
    Support(
        "device", "text", ("cpu", "auto"), "cpu", "this engine computes on the CPU",
        "leave it out, or say cpu",
    ),
    only("runner", ("auto", "generate", "pooling"), "one engine generates and embeds"),
    Support(
        "max-num-partial-prefills", "text", NONE, "no limit",
        "any number of prompts may be partly computed", "--max-num-batched-tokens and "
        "--long-prefill-token-threshold bound what a step has of them",
    ),
    Support(
        "max-loras", "text", EVERY, "all", "all adapters are held, and any of them may share a "
        "step", "say a whole number, or leave it out",
    ),
    Support(
        "max-lora-rank", "text", EVERY, "each its own", "nothing is reserved by rank",
        "say a whole number, or leave it out",
    ),
    Support(
        "tokenizer", "text", NONE, "the model's own", "the vocabulary is the model's own",
        "leave it out, or say the model again; its files are read from beside the weights",
    ),
    refused("otlp-traces-endpoint", "text", "nothing is sent anywhere",
            "/metrics and the timings of each answer have the figures"),
    unbounded("swap-space", "none", "what is preempted is computed again, not swapped"),
    refused("hf-token", "text", "a secret is read from the environment", "set HF_TOKEN"),
    refused("download-dir", "text", "models are kept where the Hub's tools keep them",
            "set HF_HOME"),
    refused("hf-overrides", "text", "a model's config is taken as it is", "edit its config.json"),
)  # fmt: skip
MODEL = (
    only("task", ("auto", "generate", "embed"), "one engine generates and embeds"),
    only("convert", ("auto", "none", "embed"), "one engine generates and embeds"),
    only("model-impl", ("auto",), "a family is computed in one way"),
    only("config-format", ("auto",), "the files say which it is"),
    only("logprobs-mode", ("raw_logprobs",), "they are the model's own, before any option"),
    only("lora-dtype", ("auto",), "adapters are computed in float32"),
    unbounded("max-cpu-loras", "all", "all adapters are held"),
    never("fully-sharded-loras", "one process computes all", active="off"),
    never("skip-tokenizer-init", "text is what is asked", active="off"),
    never("enable-prompt-embeds", "prompts are text or ids", active="off"),
    never("enable-sleep-mode", "memory is given back when the server ends", "use flyweight stop",
           "off"),
    refused("tokenizer-revision", "text", "the vocabulary is the model's own", "use --revision"),
    refused("code-revision", "text", "no code out of a checkpoint is ever run", "use --revision"),
    refused("hf-config-path", "text", "a model's config is its own", "edit its config.json"),
    refused("rope-scaling", "text", "a model's config is taken as it is", "edit its config.json"),
    refused("rope-theta", "text", "a model's config is taken as it is", "edit its config.json"),
    refused("logits-processors", "text", "no code but the package's is run",
            "logit_bias, bad_words and allowed_token_ids of a request say what may be drawn"),
    Support(
        "limit-mm-per-prompt", "text", ZEROS, "text only", "a prompt has no images, audio or video",
        "set each limit to 0, or leave it out",
    ),
    accepted("mm-processor-kwargs", "a prompt has no images, audio or video"),
    Support(
        "pooler-config", "text", ('{"pooling_type":"LAST"}',), "of each request",
        "each request sets its own pooling and normalization; the default is the last token, "
        "normalized", "leave it out, and set pooling and normalize in the request",
    ),
    refused("allowed-local-media-path", "text", "no file is read for a request", "leave it out"),
    refused("model-loader-extra-config", "text", "weights are read in one way", "leave it out"),
    refused("ignore-patterns", "text", "what is fetched is what is read", "leave it out"),
    only("safetensors-load-strategy", ("lazy",), "weights are mapped, and read as they are used"),
    only("pt-load-map-location", ("cpu",), "this engine computes on the CPU"),
    always("use-tqdm-on-load", "progress is told of after two seconds"),
)  # fmt: skip
COMPUTED = (
    either("disable-log-stats", "nothing logged", "/metrics and LLM.get_metrics have the figures"),
    only("distributed-executor-backend", ("uni", "mp", "ray"), "one process computes"),
    only("nnodes", ("1",), "one machine computes"),
    only("node-rank", ("0",), "one machine computes"),
    never("enable-expert-parallel", "one process computes all experts", active="off"),
    either("disable-custom-all-reduce", "none", "one process computes: there is nothing to reduce"),
    only("guided-decoding-backend", ("guidance", "auto"), "grammars are llguidance's"),
    only("structured-outputs-config", ('{"backend":"guidance"}', '{"backend":"auto"}'),
          "grammars are llguidance's"),
    unbounded("max-seq-len-to-capture", "0", "there are no graphs to capture on a CPU"),
    refused("cuda-graph-sizes", "text", "there are no graphs to capture on a CPU",
            "leave it out"),
    accepted("compilation-config", "kernels are compiled when the package is built"),
    accepted("attention-backend", "the CPU has one attention backend"),
    never("calculate-kv-scales", "K/V is kept in 16 or 32 bits, without scales", active="off"),
    always("disable-hybrid-kv-cache-manager", "all layers share one kind of blocks"),
    never("async-scheduling", "a step is planned once the one before is known", active="off"),
    only("num-scheduler-steps", ("1",), "every token is sent as it comes"),
    only("scheduler-delay-factor", ("0", "0.0"), "a prompt begins as soon as there is room"),
    only("preemption-mode", ("recompute",), "what is preempted is computed again"),
    refused("max-long-partial-prefills", "text", "any number of prompts may be partly computed",
            "--long-prefill-token-threshold bounds what a step has of each"),
    refused("scheduler-cls", "text", "no code but the package's is run", "leave it out"),
    refused("worker-cls", "text", "no code but the package's is run", "leave it out"),
    refused("kv-transfer-config", "text", "K/V is not sent between machines", "leave it out"),
    refused("kv-events-config", "text", "nothing is sent anywhere",
            "--kv-cache-metrics times blocks for /metrics"),
    refused("additional-config", "text", "it means nothing without a platform's plugin",
            "leave it out"),
)  # fmt: skip
STANCES = SERVED + MODEL + COMPUTED
OFFLINE = (accepted("served-model-name", "there is no server; requests name no model"),)
