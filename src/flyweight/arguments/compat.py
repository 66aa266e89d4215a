"""Options of vLLM that choose nothing here, in one table: the values that describe this engine are
accepted and listed with the reason, every other value is refused.

Invariant: none is ignored.  An option that chooses something here is a declared setting or is in
`meanings`; one that is nowhere is unknown.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flyweight.arguments.options import Flag, Value, format_value, spell_switch
from flyweight.validation.setting import Kind

SECRET = ("api-key", "hf-token")  # never shown
ON, OFF, BOTH = ("on",), ("off",), ("on", "off")
NONE: tuple[str, ...] = ()
COUNTS = ("any whole number",)
ANY = ("any value",)
ZEROS = ('{"image":0}',)  # an object of numbers that are all 0
COUNT = re.compile(r"[0-9]+(\.0*)?", re.ASCII)
SPARE = {  # what to do instead, by the accepted values; `{}` are they
    NONE: "leave it out",
    ON: "leave it out",
    OFF: "leave it out",
    BOTH: "leave it out",
    ANY: "leave it out",
    COUNTS: "use a whole number, or leave it out",
}
ACTIVE = {NONE: "off", ON: "always", OFF: "off", ANY: "no effect"}


@dataclass(frozen=True, slots=True)
class Support:
    """`accepted` are the values that describe this engine, `active` is the value in effect and
    `why` the reason; `instead` is what to do where another value is needed.
    """

    name: str
    accepted: tuple[str, ...]
    why: str
    active: str = ""
    instead: str = ""
    also: tuple[str, ...] = ()
    is_object: bool = False

    def __post_init__(self) -> None:
        first = self.accepted[0] if self.accepted else ""
        words = SPARE.get(self.accepted, f"leave it out, or use {' or '.join(self.accepted)}")
        object.__setattr__(self, "active", self.active or ACTIVE.get(self.accepted, first))
        object.__setattr__(self, "instead", self.instead or words)

    @property
    def kind(self) -> Kind:
        if self.accepted and set(self.accepted) <= set(BOTH):
            return "switch"
        return "object" if self.is_object else "text"

    @property
    def flag(self) -> Flag:
        return Flag(self.name, self.kind, self.why, also=self.also)

    def refusal(self, value: Value) -> str | None:
        """Why this value is not supported; None for one that describes this engine."""
        text = format_value(value)
        if compact(text) in self.accepted or self._fits(text):
            return None
        shown = "..." if self.name in SECRET else text
        switch = self.kind == "switch"
        given = spell_switch(self.name, value) if switch else f"--{self.name} = {shown}"
        return f"{given} is not supported: {self.why}; {self.instead}"

    def _fits(self, text: str) -> bool:
        """Whether a value is of the kind that `accepted` names."""
        if self.accepted == COUNTS:
            return COUNT.fullmatch(text) is not None
        return self.accepted == ANY or (self.accepted == ZEROS and is_zeros(text))


def is_zeros(text: str) -> bool:
    """Whether a text is a JSON object of zeros."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and all(type(n) is int and n == 0 for n in found.values())


def compact(text: str) -> str:
    """An object however it is spaced; any other text unchanged."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":")) if text[:1] == "{" else text
    except (ValueError, RecursionError):
        return text


ONE_PROCESS = "leave it out, or use 1; --threads sets how many cores are used"
NO_CODE = "no code but the package's is run"
NO_GRAPHS = "there are no graphs to capture on a CPU"
GRAPH_SIZES = "a CPU has no graphs to capture; a GPU's have fixed sizes"
ONE_ENGINE = "one engine generates and embeds"
OWN_CONFIG = "the config is used unchanged"
TEXT_ONLY = "a prompt has no images, audio or video"
NO_EVENTS = "events of blocks are not sent"
NO_H11 = "h11 is not used"

# fmt: off
ENGINE = (
    # the machine
    Support("data-parallel-size", ("1",), "one process computes all requests, in one batch",
            instead=ONE_PROCESS, also=("-dp",)),
    Support("distributed-executor-backend", ("uni", "mp", "ray"), "one process computes"),
    Support("disable-custom-all-reduce", BOTH, "one process computes: there is nothing to reduce",
            "none"),
    Support("cpu-offload-gb", ("0", "0.0"), "weights are in the memory of the device that computes",
            instead="leave it out; --memory-limit limits the memory"),
    # kernels and steps
    Support("enforce-eager", BOTH, NO_GRAPHS, "always"),
    Support("max-seq-len-to-capture", COUNTS, GRAPH_SIZES, "no limit"),
    Support("cuda-graph-sizes", NONE, GRAPH_SIZES),
    Support("compilation-config", ANY, "kernels are compiled when the package is built",
            is_object=True),
    Support("attention-backend", ANY, "each device has one attention backend"),
    Support("deterministic", ON, "every row is computed the same way in any batch; there is no "
            "other kernel to switch to",
            instead="leave it out: an answer does not depend on other requests"),
    Support("calculate-kv-scales", BOTH, "quantised K/V has a scale for each token and head",
            "always"),
    Support("disable-hybrid-kv-cache-manager", ON, "all layers share one kind of blocks"),
    Support("prefix-caching-hash-algo", ("blake2b",),
            "blocks are found by a chain of BLAKE2b digests"),
    Support("enable-chunked-prefill", ON, "a long prompt delays the others by at most a step",
            instead="leave it out; --max-num-batched-tokens limits the tokens of a step"),
    Support("max-num-partial-prefills", NONE, "any number of prompts may be partly computed",
            "no limit", "--max-num-batched-tokens and --long-prefill-token-threshold limit their "
            "tokens in a step"),
    Support("max-long-partial-prefills", NONE, "any number of prompts may be partly computed",
            instead="--long-prefill-token-threshold limits the tokens of each in a step"),
    Support("async-scheduling", OFF, "a step is planned after the step before it"),
    Support("num-scheduler-steps", ("1",), "every token is sent at once"),
    Support("scheduler-delay-factor", ("0", "0.0"),
            "a prompt starts as soon as seats and blocks are free"),
    Support("preemption-mode", ("recompute",), "a preempted sequence is computed again"),
    Support("scheduler-cls", NONE, NO_CODE),
    Support("worker-cls", NONE, NO_CODE),
    Support("additional-config", NONE, "there are no platform plugins",
            is_object=True),
    Support("kv-transfer-config", NONE, "K/V is not sent between machines", is_object=True),
    Support("kv-events-config", NONE, NO_EVENTS, instead="--kv-cache-metrics times blocks for "
            "/metrics", is_object=True),
    Support("disable-log-stats", BOTH, "/metrics and LLM.get_metrics have the figures",
            "nothing logged"),
    Support("use-tqdm-on-load", ON, "progress is shown after two seconds"),
    # the model
    Support("trust-remote-code", BOTH, "no code from a checkpoint is run; every family that is "
            "served is part of the package", "never used"),
    Support("runner", ("auto", "generate", "pooling"), ONE_ENGINE),
    Support("task", ("auto", "generate", "embed"), ONE_ENGINE),
    Support("convert", ("auto", "none", "embed"), ONE_ENGINE),
    Support("model-impl", ("auto",), "each family has one implementation"),
    Support("config-format", ("auto",), "the format is detected from the files"),
    Support("hf-config-path", NONE, "the config is read from the model's folder",
            instead="edit its config.json"),
    Support("hf-overrides", NONE, OWN_CONFIG, instead="edit its config.json", is_object=True),
    Support("rope-scaling", NONE, OWN_CONFIG, instead="edit its config.json", is_object=True),
    Support("rope-theta", NONE, OWN_CONFIG, instead="edit its config.json"),
    Support("hf-token", NONE, "a secret is read from the environment", instead="set HF_TOKEN"),
    Support("download-dir", NONE, "models are in the cache of the Hub's tools",
            instead="set HF_HOME"),
    Support("code-revision", NONE, "no code from a checkpoint is run", instead="use --revision"),
    Support("tokenizer-revision", NONE, "the tokenizer is read from the model's folder",
            instead="use --revision"),
    Support("tokenizer", NONE, "the tokenizer is read from the model's folder", "the model's own",
            "leave it out, or name the model again; its files are read from the folder of the "
            "weights"),
    Support("tokenizer-mode", ("auto",), "the model's files define it"),
    Support("skip-tokenizer-init", OFF, "requests and answers are text"),
    Support("enable-prompt-embeds", OFF, "prompts are text or ids"),
    Support("enable-sleep-mode", OFF, "memory is released when the server ends",
            instead="use flyweight stop"),
    Support("logprobs-mode", ("raw_logprobs",), "they are the model's own, before any option"),
    Support("logits-processors", NONE, NO_CODE, instead="logit_bias, bad_words and "
            "allowed_token_ids of a request limit the tokens"),
    Support("limit-mm-per-prompt", ZEROS, TEXT_ONLY, "text only",
            "set each limit to 0, or leave it out", is_object=True),
    Support("mm-processor-kwargs", ANY, TEXT_ONLY, is_object=True),
    Support("pooler-config", ('{"pooling_type":"LAST"}',), "each request sets its own pooling and "
            "normalization; the default is the last token, normalized", "of each request",
            "leave it out, and set pooling and normalize in the request", is_object=True),
    Support("allowed-local-media-path", NONE, "no file is read for a request"),
    Support("model-loader-extra-config", NONE, "there is one weight loader", is_object=True),
    Support("ignore-patterns", NONE, "only files that are read are fetched"),
    Support("safetensors-load-strategy", ("lazy",), "weights are memory-mapped"),
    Support("pt-load-map-location", ("cpu",), "this engine computes on the CPU"),
    Support("guided-decoding-backend", ("guidance", "auto"), "llguidance compiles grammars"),
    Support("structured-outputs-config", ('{"backend":"guidance"}', '{"backend":"auto"}'),
            "llguidance compiles grammars", is_object=True),
    # adapters
    Support("max-loras", COUNTS, "all adapters are loaded, and any of them may share a step",
            "all"),
    Support("max-cpu-loras", COUNTS, "all adapters are loaded", "all"),
    Support("max-lora-rank", COUNTS, "no memory is reserved by rank", "per adapter"),
    Support("lora-dtype", ("auto",), "adapters are computed in float32"),
    Support("fully-sharded-loras", OFF, "one process computes all"),
)
SERVER = (
    Support("api-server-count", ("1",), "one process serves HTTP", also=("-asc",)),
    Support("disable-frontend-multiprocessing", OFF, "HTTP and engine are two processes, so that "
            "neither waits for the other", "never"),
    Support("enable-per-request-metrics", ON, "every answer has its timings"),
    Support("enable-auto-tool-choice", ON, "a request that declares tools may call them",
            instead="set tool_choice of a request to none"),
    Support("exclude-tools-when-tool-choice-none", ON,
            "with tool_choice none the prompt has no tools"),
    Support("enable-request-id-headers", ON, "every answer has an X-Request-Id"),
    Support("enable-prompt-tokens-details", ON, "usage always has cached_tokens"),
    Support("enable-server-load-tracking", ON, "/load returns the load"),
    Support("enable-tokenizer-info-endpoint", ON,
            "/tokenizer_info is served, with the key if any"),
    Support("disable-fastapi-docs", OFF,
            "the document needs the key, and its page holds no data", "served"),
    Support("response-role", ("assistant",), "answers have the role assistant"),
    Support("chat-template-content-format", ("auto",), "the template defines it"),
    Support("trust-request-chat-template", OFF, "no template of a request is run", "never",
            "give the server one: --chat-template"),
    Support("tool-parser-plugin", NONE, NO_CODE, instead="see --tool-call-parser"),
    Support("reasoning-parser-plugin", NONE, NO_CODE, instead="see --reasoning-parser"),
    Support("middleware", NONE, NO_CODE, instead="put a proxy in front"),
    Support("tool-server", NONE, "the client runs the tools"),
    Support("ssl-ca-certs", NONE, "certificates of clients are not checked",
            instead="leave it out, or put a proxy in front of 127.0.0.1"),
    Support("h11-max-incomplete-event-size", NONE, NO_H11, instead="use --max-header-bytes"),
    Support("h11-max-header-count", NONE, NO_H11, instead="use --max-header-bytes"),
    # log
    Support("enable-log-outputs", OFF, "no text of a request is logged", "never"),
    Support("max-log-len", COUNTS, "no prompt is logged", "0"),
    Support("log-config-file", NONE, "the log has one format", instead="use --log-format"),
    Support("collect-detailed-traces", NONE, "a trace has every stage of its request",
            instead="leave it out; /debug/steps has the steps"),
    Support("show-hidden-metrics-for-version", NONE, "no metric is hidden"),
)
OFFLINE = (
    Support("served-model-name", ANY, "there is no server; requests name no model"),
    Support("otlp-traces-endpoint", NONE, "requests of a server are traced",
            instead="use flyweight serve"),
)
# fmt: on


GPU = ("cuda", "gpu")  # values of --device
GPU_OPTIONS = ("enforce-eager", "deterministic")  # that choose something on a GPU


def select_supports(
    supports: Mapping[str, Support], options: Mapping[str, Value]
) -> Mapping[str, Support]:
    """The options that choose nothing, given the device that is requested."""
    if not computes_on_gpu(options):
        return supports
    return {name: row for name, row in supports.items() if name not in GPU_OPTIONS}


def computes_on_gpu(options: Mapping[str, Value]) -> bool:
    return options.get("device") in GPU or options.get("backend") == "cuda"


def index_supports(*tables: tuple[Support, ...]) -> Mapping[str, Support]:
    """The rows of tables by their names."""
    return MappingProxyType({row.name: row for table in tables for row in table})
