"""Options of vLLM's that choose nothing here: there is one way, and it is said why.

Invariant: none is ignored.  A value that asks for what is so anyway is put into the ledger of
effective settings; any other is refused, with what to use instead.
"""

import re
from dataclasses import dataclass
from typing import Literal

from flyweight.cli.serve.flags import Flag

FILES = ("api-key-file", "chat-template", "lora-modules")  # options that name some
FOLDERS = re.compile(r"[^\s=\"{}<>%]*/")
Value = bool | str | list[str]
NONE: tuple[str, ...] = ()
EVERY = ("any whole number",)


@dataclass(frozen=True, slots=True)
class Stance:
    """`so` are the values that ask for what is so; `active` and `why` are told of them, `instead`
    of the others.
    """

    name: str
    kind: Literal["switch", "text"]
    so: tuple[str, ...]
    active: str
    why: str
    instead: str
    also: tuple[str, ...] = ()

    @property
    def flag(self) -> Flag:
        return Flag(self.name, self.kind, self.why, also=self.also)

    def refusal(self, value: Value) -> str | None:
        """Why this value cannot be honoured; None where it is so anyway."""
        if said(value) in self.so or (self.so == EVERY and said(value).isdecimal()):
            return None
        asked = f"--{self.name} = {said(value)}" if self.kind == "text" else spelt(self.name, value)
        return f"{asked} cannot be honoured: {self.why}; {self.instead}"


def said(value: Value) -> str:
    """A value as it was written."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else " ".join(value)


def written(name: str, value: Value) -> str:
    """An option and its value as they were written, cut, and without the folders of files: whoever
    has a key may read it in the ledger.
    """
    if isinstance(value, bool):
        return spelt(name, value)
    text = said(value)
    return f"--{name} {FOLDERS.sub('', text) if name in FILES else text}"[:200]


def spelt(name: str, value: Value) -> str:
    """A switch as it was written."""
    return f"--no-{name}" if value is False else f"--{name}"


def _one(name: str, what: str, also: str = "") -> Stance:
    """A way to spread a model over devices."""
    return Stance(
        name, "text", ("1",), "1", f"one process computes {what}",
        "leave it out, or say 1; --threads sets how many cores are used", (also,) if also else (),
    )  # fmt: skip


def _refused(name: str, kind: Literal["switch", "text"], why: str, instead: str) -> Stance:
    return Stance(name, kind, NONE, "off", why, instead)


STANCES = (
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
        "scheduling-policy", "text", ("priority", "fcfs"), "priority",
        "ranked by priority, then by arrival: without priorities that is first come, first served",
        "allowed: priority, fcfs",
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
        "stream-interval", "text", ("1",), "1", "every token is sent as it comes",
        "leave it out, or say 1",
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
    _refused("tokenizer", "text", "the vocabulary is the model's own",
             "put the tokenizer's files beside the weights"),
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
