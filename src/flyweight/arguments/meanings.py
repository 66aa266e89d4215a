"""The engine's options: rows of the declared settings, and of options that are more than a field,
with what each of those means.

Invariant: an option has vLLM's name where vLLM has one.  A meaning either goes into the draft, with
a row of the effective configuration where it is not plain, or is refused with the reason and the
nearest valid value.
"""

import json
import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from flyweight.arguments import objects
from flyweight.arguments.compat import GPU_OPTIONS, computes_on_gpu
from flyweight.arguments.draft import DraftArguments, Meaning
from flyweight.arguments.options import Flag, make_flags, number
from flyweight.config import Settings
from flyweight.errors import ConfigError, nearest
from flyweight.validation.untrusted import shown

# vLLM's names; on a CPU it computes float16 as bfloat16 too
COMPUTED_AS = {
    "half": "bf16", "float16": "bf16", "bfloat16": "bf16", "float": "f32", "float32": "f32",
}  # fmt: skip
ADAPTER = re.compile(r"([^=\s]{1,200})=(.+)")
DEVICES = {"auto": "cpu", "cpu": "cpu", "cuda": "cuda", "gpu": "cuda"}  # to backends
GPU_SWITCHES = {
    "enforce-eager": "on: decode steps run without CUDA graphs",
    "deterministic": "on: 14 % more time for a long prompt in bf16 (H200); off: cuBLAS for 64 rows "
    "of a dense matrix or more",
}
POLICIES = ("priority", "fcfs")
FORMATS = ("auto", "gguf", "safetensors", "pt")


def apply_utilization(draft: DraftArguments) -> None:
    draft.conflict("gpu-memory-utilization", "memory-limit")
    text = draft.text("gpu-memory-utilization")
    share = number("--gpu-memory-utilization", text)
    if not 0 < share <= 1:
        raise ConfigError(
            f"--gpu-memory-utilization = {text} is out of range; allowed: above 0, up to 1; "
            f"nearest valid: {1.0 if share > 1 else 0.01}"
        )
    draft.engine["memory_limit"] = f"{100 * share:.9f}".rstrip("0").rstrip(".") + "%"
    of = "on a CPU it is that share of the memory this process may use (cgroups counted)"
    if computes_on_gpu(draft.options):
        of = "that share of the GPU's memory"
    draft.note("gpu-memory-utilization", f"memory_limit {draft.engine['memory_limit']}", of)


def apply_device(draft: DraftArguments) -> None:
    requested = draft.text("device")
    backend = DEVICES.get(requested)
    if backend is None:
        raise ConfigError(
            f"--device = {shown(requested)} is not supported; allowed: {', '.join(DEVICES)}"
            f"{nearest(requested, DEVICES)}"
        )
    if draft.options.get("backend", backend) != backend:
        raise ConfigError(
            f"--device {requested} and --backend {draft.options['backend']} contradict each other"
        )
    draft.engine["backend"] = backend
    draft.note("device", backend, "an NVIDIA GPU" if backend == "cuda" else "the CPU")


def apply_gpu_switch(name: str, draft: DraftArguments) -> None:
    """A switch that only chooses something on a GPU."""
    on = bool(draft.options[name])
    draft.engine[name.replace("-", "_")] = on
    draft.note(name, "on" if on else "off", GPU_SWITCHES[name])


def apply_dtype(draft: DraftArguments) -> None:
    requested = draft.text("dtype").removeprefix("torch.")  # PyTorch's own, as vLLM takes them
    if requested == "auto":
        draft.note("dtype", "auto", "weights are used as stored in the file; see activations")
        return
    if requested not in COMPUTED_AS:
        raise ConfigError(
            f"--dtype = {shown(requested)} is not supported: this engine computes in int8, bf16 or "
            f"f32; allowed: auto, {', '.join(COMPUTED_AS)}; nearest valid: bfloat16"
        )
    computed = COMPUTED_AS[requested]
    activations = draft.options.get("activations", computed)
    if activations != computed:
        raise ConfigError(
            f"--dtype {requested} and --activations {activations} contradict each other"
        )
    draft.engine["activations"] = computed
    half = requested in ("half", "float16")
    why = (
        "16 bits: float16 is computed as bfloat16"
        if half
        else "weights are used as stored in the file"
    )
    draft.note("dtype", f"activations {computed}", why)


def apply_quantization(draft: DraftArguments) -> None:
    text = draft.text("quantization")
    given = objects.read_quantization(text)
    requested = given["method"]
    if requested in ("none", "auto"):
        draft.note("quantization", requested, "weights are used as stored in the file")
    elif requested == "gguf":
        if (other := draft.engine.get("load_format")) in ("safetensors", "pt"):
            raise ConfigError(f"--quantization gguf and --load-format {other} contradict")
        draft.engine["load_format"] = "gguf"
        draft.note("quantization", "gguf", "the file's own types")
    else:
        held = draft.engine.get("quantization", given)["method"]  # of --load-format
        if held != requested:
            raise ConfigError(f"--load-format {held} and --quantization {requested} contradict")
        draft.engine["quantization"] = given
        draft.note("quantization", requested, "the files have this method")


def apply_load_format(draft: DraftArguments) -> None:
    requested = draft.text("load-format").lower()
    if requested == "bitsandbytes":  # vLLM's word for safetensors of that method
        method = draft.engine.setdefault("quantization", {"method": requested})["method"]
        if method != requested:
            raise ConfigError(f"--load-format {requested} and --quantization {method} contradict")
        requested = "safetensors"
    if requested not in FORMATS:
        raise ConfigError(
            f"--load-format = {shown(requested)} is not supported: weights are read from "
            "safetensors, PyTorch files or GGUF; allowed: auto, safetensors, gguf, pt"
        )
    if requested in ("safetensors", "pt") and draft.engine.get("load_format") == "gguf":
        raise ConfigError(
            f"--load-format {requested} and --quantization gguf contradict each other"
        )
    if requested != "auto":
        draft.engine["load_format"] = requested
    draft.note("load-format", requested, "the format is detected from the files")


def apply_generation_config(draft: DraftArguments) -> None:
    requested = draft.text("generation-config")
    if requested not in ("auto", "vllm"):
        raise ConfigError(
            f"--generation-config = {shown(requested)} is not supported; allowed: "
            "auto (the model's own), vllm (neutral defaults)"
        )
    draft.server["model_defaults"] = requested == "auto"
    draft.note("generation-config", requested, "defaults of requests that leave an option out")


def apply_sampling_defaults(draft: DraftArguments) -> None:
    name = "override-generation-config"
    found = objects.read_sampling(f"--{name}", draft.text(name))
    draft.server["sampling_defaults"] = found
    draft.note(
        name,
        objects.format_options(found),
        "used instead of the model's where a request has no value",
    )


def apply_adapters(draft: DraftArguments) -> None:
    if draft.options.get("enable-lora") is not True:
        raise ConfigError("--lora-modules needs --enable-lora")
    found: dict[str, str] = {}
    parents: dict[str, str] = {}
    for word in draft.many("lora-modules"):
        name, path, parent = read_adapter(word)
        if name in found:
            raise ConfigError(f"--lora-modules: the name {shown(name)} is given twice")
        found[name] = path
        if parent:
            parents[name] = parent
    draft.engine["adapters"], draft.server["parents"] = found, parents


def read_adapter(word: str) -> tuple[str, str, str]:
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


def apply_enable_lora(draft: DraftArguments) -> None:
    named = draft.options.keys() & {"lora-modules", "adapters"}
    if draft.options["enable-lora"] is True and not named:
        raise ConfigError(
            "--enable-lora without adapters does nothing; name them: --lora-modules NAME=FOLDER"
        )
    if "lora-modules" not in named:
        draft.note("enable-lora", "adapters that are named", "they are loaded with the model")


def apply_policy(draft: DraftArguments) -> None:
    requested = draft.text("scheduling-policy")
    if requested not in POLICIES:
        raise ConfigError(
            f"--scheduling-policy = {shown(requested)} is not supported; allowed: "
            f"{', '.join(POLICIES)}{nearest(requested, POLICIES)}"
        )
    if requested == "fcfs":
        if "max-priority" in draft.options:
            raise ConfigError("--scheduling-policy fcfs and --max-priority contradict each other")
        draft.server["max_priority"] = 0


FLAGS = (  # options that no field declares
    Flag(
        "dtype", "text",
        "Precision to compute in: auto, bfloat16 (half, float16), float32 (float).",
        metavar="TYPE", default="auto", group="Model",
    ),
    Flag(
        "generation-config", "text", "Sampling defaults: auto (the model's) or vllm (neutral).",
        metavar="NAME", default="auto", group="Model",
    ),
    Flag(
        "override-generation-config", "object",
        'Sampling defaults that replace the model\'s: {"temperature": 0.3}.',
        metavar="JSON", group="Model",
    ),
    Flag("enable-lora", "switch", "Serve LoRA adapters.", group="Model"),
    Flag(
        "gpu-memory-utilization", "number",
        "Memory for everything, as a share of the machine's: 0.8.",
        metavar="SHARE", group="Engine",
    ),
    Flag(
        "device", "text", "What computes: cpu, or cuda (an NVIDIA GPU; extra `cuda`).",
        metavar="DEVICE", default="cpu", group="Engine",
    ),
    Flag(
        "scheduling-policy", "text",
        "Order of requests: priority, or fcfs, which refuses priorities.",
        metavar="POLICY", default="priority", group="Engine",
    ),
)  # fmt: skip
ENGINE_FLAGS: Mapping[str, Flag] = MappingProxyType(
    {flag.name: flag for flag in (*make_flags(Settings, "engine"), *FLAGS)}
)
MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        "gpu-memory-utilization": apply_utilization,
        "device": apply_device,
        **{name: partial(apply_gpu_switch, name) for name in GPU_OPTIONS},
        "dtype": apply_dtype,
        "quantization": apply_quantization,
        "load-format": apply_load_format,
        "generation-config": apply_generation_config,
        "override-generation-config": apply_sampling_defaults,
        "enable-lora": apply_enable_lora,
        "lora-modules": apply_adapters,
        "scheduling-policy": apply_policy,
    }
)
