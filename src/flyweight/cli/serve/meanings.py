"""Options that take a thought: what each means for `Settings` and `ServerSettings`.

Invariant: a meaning either goes into the draft, with a line of the ledger where it is not plain, or
is refused with the reason and the nearest that is built.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyweight.cli.serve import objects, speculation
from flyweight.cli.serve.stance import written
from flyweight.cli.serve.values import count, number
from flyweight.cli.serve.words import Asked
from flyweight.config import served_key
from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.server.ledger.wishes import Wish
from flyweight.untrusted import read_bytes, shown

FLOATS = {"half": "float16", "float": "float32"}
COMPUTED_AS = {"bfloat16": "bf16", "float32": "f32"}
KV = {"float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32"}
ADAPTER = re.compile(r"([^=\s]{1,200})=(.+)")
LEVELS = ("info", "warning", "error", "critical")  # uvicorn's, from lines of access to none
POLICIES = ("priority", "fcfs")
SECRET_BYTES, TEMPLATE_BYTES = 1 << 20, 1 << 20
Meaning = Callable[["Draft"], None]


@dataclass(slots=True)
class Draft:
    """A choice being made."""

    asked: Asked
    engine: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    wishes: list[Wish] = field(default_factory=list)
    format: str = ""

    def wish(self, name: str, active: str, why: str) -> None:
        asked = written(name, self.asked.options[name])
        self.wishes.append(Wish(f"--{name}", asked, active, why))

    def conflict(self, one: str, other: str) -> None:
        if one in self.asked.options and other in self.asked.options:
            raise ConfigError(f"--{one} and --{other} say the same thing; give one of them")


def _text(draft: Draft, name: str) -> str:
    value = draft.asked.options[name]
    assert isinstance(value, str)
    return value


def _many(draft: Draft, name: str) -> list[str]:
    value = draft.asked.options[name]
    assert isinstance(value, list)
    return value


def model(draft: Draft) -> None:
    models = list(dict.fromkeys(draft.asked.models))
    if "model" in draft.asked.options:
        models = list(dict.fromkeys([*models, _text(draft, "model")]))
    if len(models) > 1:
        raise ConfigError(
            f"MODEL = {', '.join(m[:80] for m in models)}: {len(models)} models; allowed: one; "
            "start a server for each, on a --port of its own"
        )
    if models:
        draft.engine["model"] = models[0]


def _max_model_len(draft: Draft) -> None:
    text = _text(draft, "max-model-len")
    if text not in ("auto", "-1"):
        draft.engine["max_model_len"] = count("--max-model-len", text)


def _utilization(draft: Draft) -> None:
    draft.conflict("gpu-memory-utilization", "memory-limit")
    text = _text(draft, "gpu-memory-utilization")
    share = number("--gpu-memory-utilization", text)
    if not 0 < share <= 1:
        raise ConfigError(
            f"--gpu-memory-utilization = {text} is out of range; allowed: above 0, up to 1; "
            f"nearest valid: {1.0 if share > 1 else 0.01}"
        )
    draft.engine["memory_limit"] = f"{100 * share:.9f}".rstrip("0").rstrip(".") + "%"
    draft.wish(
        "gpu-memory-utilization", f"memory_limit {draft.engine['memory_limit']}",
        "on a CPU it is that share of the memory this process may use (cgroups counted)",
    )  # fmt: skip


def _dtype(draft: Draft) -> None:
    asked = FLOATS.get(_text(draft, "dtype"), _text(draft, "dtype"))
    if asked == "auto":
        draft.wish("dtype", "auto", "weights are as the file has them; see activations")
        return
    if asked not in COMPUTED_AS:
        raise ConfigError(
            f"--dtype = {shown(asked)} cannot be honoured: this engine computes in int8, bf16 or "
            "f32; allowed: auto, bfloat16, float32; nearest valid: bfloat16"
        )
    activations = draft.asked.options.get("activations", COMPUTED_AS[asked])
    if activations != COMPUTED_AS[asked]:
        raise ConfigError(f"--dtype {asked} and --activations {activations} contradict each other")
    draft.engine["activations"] = COMPUTED_AS[asked]
    draft.wish("dtype", f"activations {COMPUTED_AS[asked]}", "weights are as the file has them")


def _kv_dtype(draft: Draft) -> None:
    asked = _text(draft, "kv-cache-dtype")
    if asked.startswith("fp8"):
        raise ConfigError(
            f"--kv-cache-dtype = {shown(asked)} cannot be honoured: K/V is kept in 16 or 32 bits; "
            "allowed: auto, f16, bf16, f32; nearest valid: f16"
        )
    draft.engine["kv_cache_dtype"] = KV.get(asked, asked)


def _quantization(draft: Draft) -> None:
    asked = _text(draft, "quantization").lower()
    if asked in ("none", "auto"):
        draft.wish("quantization", asked, "weights are computed with as the file has them")
    elif asked == "gguf":
        draft.format = "gguf"
        draft.wish("quantization", "gguf", "the file's own types")
    else:
        raise ConfigError(
            f"--quantization = {shown(asked)} cannot be honoured: quantised weights come as GGUF; "
            "give a .gguf file or a name on the Hub with its type, as org/name:Q4_K_M"
        )


def _load_format(draft: Draft) -> None:
    asked = _text(draft, "load-format").lower()
    if asked not in ("auto", "gguf", "safetensors"):
        raise ConfigError(
            f"--load-format = {shown(asked)} cannot be honoured: weights come as safetensors or "
            "GGUF; allowed: auto, safetensors, gguf"
        )
    if draft.format and asked not in ("auto", draft.format):
        raise ConfigError(f"--load-format {asked} and --quantization gguf contradict each other")
    draft.format = draft.format or ("" if asked == "auto" else asked)
    draft.wish("load-format", asked, "the files' kind is seen from the files")


def _chat_template(draft: Draft) -> None:
    given = _text(draft, "chat-template")
    if "{" not in given:
        given = _lines(Path(given), "--chat-template", TEMPLATE_BYTES)
    draft.server["chat_template"] = given
    draft.wish("chat-template", "used", "instead of the model's own")


def _generation_config(draft: Draft) -> None:
    asked = _text(draft, "generation-config")
    if asked not in ("auto", "vllm"):
        raise ConfigError(
            f"--generation-config = {shown(asked)} cannot be honoured; allowed: auto (the model's "
            "own), vllm (neutral defaults)"
        )
    draft.server["model_defaults"] = asked == "auto"
    draft.wish("generation-config", asked, "defaults of requests that leave an option out")


def _switches(draft: Draft) -> None:
    name = "default-chat-template-kwargs"
    found = objects.switches(f"--{name}", _text(draft, name))
    draft.server["template_defaults"] = found
    draft.wish(name, objects.told(found), "where a request's chat_template_kwargs do not say")


def _sampling(draft: Draft) -> None:
    name = "override-generation-config"
    found = objects.sampling(f"--{name}", _text(draft, name))
    draft.server["sampling_defaults"] = found
    draft.wish(name, objects.told(found), "instead of the model's, where a request does not say")


def _adapters(draft: Draft) -> None:
    if draft.asked.options.get("enable-lora") is not True:
        raise ConfigError("--lora-modules needs --enable-lora")
    found: dict[str, str] = {}
    parents: dict[str, str] = {}
    for word in _many(draft, "lora-modules"):
        name, path, parent = _adapter(word)
        if name in found:
            raise ConfigError(f"--lora-modules: the name {shown(name)} is given twice")
        found[name] = path
        if parent:
            parents[name] = parent
    draft.engine["adapters"], draft.server["parents"] = found, parents


def _adapter(word: str) -> tuple[str, str, str]:
    """`name=folder`, or vLLM's JSON, with what the base model is called in lists."""
    if word.lstrip().startswith("{"):
        with_json = f"--lora-modules {shown(word)}"
        try:
            given = json.loads(word)
            name, path = given.pop("name"), given.pop("path")
            parent = given.pop("base_model_name", None) or ""
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"{with_json}: allowed: an object with name and path") from None
        if given:
            known = "name, path, base_model_name"
            raise ConfigError(f"{with_json}: {shown(next(iter(given)))} is unknown; known: {known}")
        if all(isinstance(one, str) for one in (name, path, parent)) and name and path:
            return name, path, parent
        raise ConfigError(f"{with_json}: name, path and base_model_name are text")
    match = ADAPTER.fullmatch(word)
    if match is None:
        raise ConfigError(f"--lora-modules = {shown(word)} is not valid; allowed: NAME=FOLDER")
    return match[1], match[2], ""


def _enable_lora(draft: Draft) -> None:
    if draft.asked.options["enable-lora"] is True and "lora-modules" not in draft.asked.options:
        raise ConfigError(
            "--enable-lora without adapters does nothing; name them: --lora-modules NAME=FOLDER"
        )


def _speculation(draft: Draft) -> None:
    found = speculation.read(_text(draft, "speculative-config"))
    draft.engine["draft_tokens"] = found.tokens
    draft.engine["prompt_lookup_max"] = found.longest
    draft.engine["prompt_lookup_min"] = found.shortest


def _policy(draft: Draft) -> None:
    asked = _text(draft, "scheduling-policy")
    if asked not in POLICIES:
        raise ConfigError(
            f"--scheduling-policy = {shown(asked)} cannot be honoured; allowed: "
            f"{', '.join(POLICIES)}{nearest(asked, POLICIES)}"
        )
    if asked == "fcfs":
        if "max-priority" in draft.asked.options:
            raise ConfigError("--scheduling-policy fcfs and --max-priority contradict each other")
        draft.server["priorities"] = 0


def _quiet(draft: Draft) -> None:
    draft.conflict("disable-log-requests", "enable-log-requests")
    quiet = draft.asked.options["disable-log-requests"] is True
    draft.server["log_requests"] = not quiet
    draft.wish("disable-log-requests", "no line a request" if quiet else "a line a request",
               "what enable-log-requests says, the other way about")  # fmt: skip


def _access(draft: Draft) -> None:
    """uvicorn's lines of access are our line a request."""
    draft.conflict("disable-uvicorn-access-log", "enable-log-requests")
    quiet = draft.asked.options["disable-uvicorn-access-log"] is True
    active = "no line a request" if quiet else "a line a request"
    draft.wish("disable-uvicorn-access-log", active, "that is all uvicorn would say")
    _hush(draft, quiet)


def _level(draft: Draft) -> None:
    asked = _text(draft, "uvicorn-log-level")
    if asked not in LEVELS:
        raise ConfigError(
            f"--uvicorn-log-level = {shown(asked)} cannot be honoured: there is a line a request, "
            f"or none; allowed: {', '.join(LEVELS)}; nearest valid: info"
        )
    active = "a line a request" if asked == "info" else "no line a request"
    draft.wish("uvicorn-log-level", active, "that is all uvicorn would say")
    _hush(draft, asked != "info")


def _hush(draft: Draft, quiet: bool) -> None:
    """No line a request, unless it is asked for by name."""
    if quiet and "enable-log-requests" not in draft.asked.options:
        draft.server["log_requests"] = False


def key_of_environment(draft: Draft) -> None:
    """Options take its place: a command line can be read by everybody on the machine, this not."""
    name, key = served_key()
    if name and not {"api-key", "api-key-file"} & draft.asked.options.keys():
        draft.server["keys"] = (key,)
        draft.wishes.append(Wish(name, "set", "on", "clients must send this key"))


def _keys(draft: Draft) -> None:
    keys = list(_many(draft, "api-key")) if "api-key" in draft.asked.options else []
    if "api-key-file" in draft.asked.options:
        for file in _many(draft, "api-key-file"):
            lines = _lines(Path(file), "--api-key-file", SECRET_BYTES).splitlines()
            found = [line.strip() for line in lines]
            found = [line for line in found if line and not line.startswith("#")]
            if not found:
                raise ConfigError(f"--api-key-file {file}: no key in it")
            keys += found
    if not all(key.strip() for key in keys):
        raise ConfigError("--api-key = '' is not valid; allowed: one character or more")
    draft.server["keys"] = tuple(keys)


def _lines(path: Path, option: str, most: int) -> str:
    try:
        return read_bytes(path.expanduser(), most).decode("utf-8")
    except CheckpointError as error:
        raise ConfigError(f"{option} {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option} {path}: not UTF-8 text") from None


MEANINGS: dict[str, Meaning] = {
    "max-model-len": _max_model_len,
    "gpu-memory-utilization": _utilization,
    "dtype": _dtype,
    "kv-cache-dtype": _kv_dtype,
    "quantization": _quantization,
    "load-format": _load_format,
    "chat-template": _chat_template,
    "generation-config": _generation_config,
    "default-chat-template-kwargs": _switches,
    "override-generation-config": _sampling,
    "enable-lora": _enable_lora,
    "lora-modules": _adapters,
    "speculative-config": _speculation,
    "scheduling-policy": _policy,
    "disable-log-requests": _quiet,
    "disable-uvicorn-access-log": _access,
    "uvicorn-log-level": _level,
    "api-key": _keys,
    "api-key-file": _keys,
}
