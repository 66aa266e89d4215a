"""Options whose value is a JSON object: read strictly, with the keys that each has.

Invariant: a key that means nothing is refused by name, all of them at once, and contradicting keys
are named together.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from flyweight.errors import CheckpointError, ConfigError, Refusals, RequestError, nearest
from flyweight.types import OPTIONS, SamplingParams
from flyweight.validation.untrusted import parse_object, shown, spell

DEFAULTS = {  # of generation_config.json, as vLLM reads it
    one.generation_config: name for name, one in OPTIONS.items() if one.generation_config
}


def parse_object_option(option: str, text: str) -> dict[str, Any]:
    """Raises `ConfigError`."""
    try:
        return parse_object(text.encode("utf-8", "replace"), option)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None


def check_keys(option: str, given: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises `ConfigError` where a key is none of them."""
    strays = [f"{shown(name)}{nearest(name, names)}" for name in given if name not in names]
    if strays:
        are = "is" if len(strays) == 1 else "are"
        listed = ", ".join(names)
        raise ConfigError(f"{option}: {', '.join(strays)} {are} unknown; allowed: {listed}")


def read_sampling(option: str, text: str) -> dict[str, Any]:
    """Keys of a generation_config.json, as options of a request; null takes the model's away."""
    given = parse_object_option(option, text)
    check_keys(option, given, tuple(DEFAULTS))
    found = {DEFAULTS[name]: value for name, value in given.items()}
    try:
        SamplingParams(**{name: value for name, value in found.items() if value is not None})
    except RequestError as error:
        raise ConfigError(f"{option}: {error}") from None
    return found


def format_options(given: Mapping[str, Any]) -> str:
    """In few words, for the effective configuration."""
    return ", ".join(f"{name} = {spell(value)}" for name, value in given.items()) or "none"


# --- quantization: weights are not quantised here; the files must have the requested method ---

QUANTIZATION = "--quantization"
METHOD_KEYS = {  # keys, and the one each means
    "method": "method",
    "quant_method": "method",
    "type": "type",
    "bits": "bits",
    "group_size": "group_size",
    "desc_act": "desc_act",
    "act_order": "desc_act",
    "sym": "sym",
}
METHOD_KINDS: dict[str, tuple[type, str]] = {
    "method": (str, "text, as GPTQ"),
    "type": (str, "text, as int4"),
    "bits": (int, "a whole number, as 4"),
    "group_size": (int, "a whole number, as 128"),
    "desc_act": (bool, "true or false"),
    "sym": (bool, "true or false"),
}
# vLLM's names of the methods whose files are read, and the one each means
FILE_METHODS = {
    "gguf": "gguf", "none": "none", "auto": "auto", "gptq": "gptq", "gptq_marlin": "gptq",
    "awq": "awq", "awq_marlin": "awq", "compressed-tensors": "compressed-tensors",
    "bitsandbytes": "bitsandbytes", "fp8": "fp8", "fbgemm_fp8": "fbgemm_fp8", "hqq": "hqq",
    "torchao": "torchao",
    "auto-round": "auto-round", "auto_round": "auto-round", "inc": "auto-round", "mxfp4": "mxfp4",
    "gpt_oss_mxfp4": "mxfp4", "modelopt": "modelopt", "modelopt_fp4": "modelopt",
}  # fmt: skip

# names of numbers, and the methods of files that hold such
NUMBERS = {
    "bnb": ("bitsandbytes",), "int4": ("gptq", "awq", "compressed-tensors", "torchao"),
    "int8": ("compressed-tensors", "bitsandbytes", "torchao", "gptq"),
    "w4a16": ("compressed-tensors", "gptq", "awq"), "w8a8": ("compressed-tensors",),
    "w8a16": ("compressed-tensors", "gptq"), "nf4": ("bitsandbytes",),
    "fp4": ("bitsandbytes", "modelopt_fp4", "compressed-tensors"),
    "nvfp4": ("modelopt_fp4", "compressed-tensors"),
}  # fmt: skip


def read_quantization(text: str) -> dict[str, Any]:
    """What the files must have, by the names of METHOD_KINDS without `type`: a method, and of an
    object further settings.  Raises `Refusals` for unknown methods and for keys that cannot be.
    """
    if not text.lstrip().startswith("{"):
        return {"method": _find_method(text)}
    given = parse_object_option(QUANTIZATION, text)
    if not given:
        return {"method": "auto"}  # as the setting is where nothing is required
    snakes = {name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() for name in given}
    check_keys(QUANTIZATION, {snakes[name]: value for name, value in given.items()}, METHOD_KEYS)
    refusals: list[str] = []
    found: dict[str, Any] = {}
    first: dict[str, str] = {}  # each setting's key, as it was written
    for name, value in given.items():
        setting = METHOD_KEYS[snakes[name]]
        kind, allowed = METHOD_KINDS[setting]
        if value is None:
            continue
        if type(value) is not kind:
            refusals.append(
                f"{QUANTIZATION}: {name} = {spell(value)} is not valid; allowed: {allowed}"
            )
        elif found.get(setting, value) != value:
            refusals.append(
                f"{QUANTIZATION}: {first[setting]} = {spell(found[setting])} and {name} = "
                f"{spell(value)} contradict each other: both set {setting}; give one of them"
            )
        else:
            found[setting] = value
            first.setdefault(setting, name)
    if not any(METHOD_KEYS[snakes[name]] == "method" and given[name] is not None for name in given):
        refusals.append(f"{QUANTIZATION}: method is missing; allowed: {', '.join(FILE_METHODS)}")
    elif "method" in found:
        try:
            found["method"] = _find_method(found["method"])
        except Refusals as error:
            refusals += error.lines
    bits = re.search(r"\d+", found.pop("type", ""))
    if bits and found.setdefault("bits", int(bits[0])) != int(bits[0]):
        refusals.append(
            f"{QUANTIZATION}: type of {bits[0]} bits and bits = {found['bits']} contradict each "
            "other; give one of them"
        )
    if refusals:
        raise Refusals(refusals)
    return found


def _find_method(text: str) -> str:
    """The method that a name means."""
    if text.lower() not in FILE_METHODS:
        methods = NUMBERS.get(text.lower())
        near = nearest(text.lower(), FILE_METHODS)
        if methods is not None:
            near = f" (methods of such files: {', '.join(methods)})"
        raise Refusals([
            f"{QUANTIZATION} = {shown(text)} is not supported{near}; allowed: "
            f"{', '.join(FILE_METHODS)}; weights are not quantised here, give a model whose files "
            "are"
        ])  # fmt: skip
    return FILE_METHODS[text.lower()]
