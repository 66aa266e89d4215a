"""Options whose value is a JSON object: read strictly, with the keys that each has.

Invariant: a key that means nothing is refused by name, all of them at once, and contradicting keys
are named together.  What `--speculative-config` accepts is what `NgramDrafter` does.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.config import whole
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


# --- speculative decoding ---

SPECULATION = "--speculative-config"
METHODS = (
    "ngram", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "suffix",
)  # fmt: skip
SPECULATION_KEYS = (
    "method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min",
    "draft_tensor_parallel_size", "quantization", "max_model_len", "revision",
    "disable_by_batch_size", "disable_padded_drafter_batch", "parallel_drafting",
)  # fmt: skip
NGRAM_KEYS = SPECULATION_KEYS[:5]
MOST_DRAFTS, LONGEST_MATCH = 64, 1024


@dataclass(frozen=True, slots=True)
class Speculation:
    """Up to `tokens` drafts a step, after a match of the last `longest` down to `shortest`."""

    tokens: int
    longest: int
    shortest: int


def read_speculation(text: str) -> Speculation:
    """Raises `ConfigError`."""
    try:
        given = parse_object(text.encode(), SPECULATION)
    except CheckpointError as error:
        example = '{"method": "ngram", "num_speculative_tokens": 4}'
        raise ConfigError(f"{error}; allowed: an object such as {example}") from None
    for name in given:
        if name not in SPECULATION_KEYS:
            raise ConfigError(
                f"{SPECULATION}: {shown(name)} is unknown{nearest(name, SPECULATION_KEYS)}"
            )
    tokens: Any = given.get("num_speculative_tokens")
    if tokens is not None:
        _check_whole("num_speculative_tokens", tokens, 1, MOST_DRAFTS)
    _check_method(given)
    if tokens is None:
        raise ConfigError(
            f"{SPECULATION}: num_speculative_tokens is missing; allowed: 1 to {MOST_DRAFTS}"
        )
    for name in given:
        if name not in NGRAM_KEYS:
            raise ConfigError(f"{SPECULATION}: {name} does not apply to ngram; leave it out")
    longest = given.get("prompt_lookup_max", given.get("prompt_lookup_min", 5))
    _check_whole("prompt_lookup_max", longest, 1, LONGEST_MATCH)
    shortest = given.get("prompt_lookup_min", min(2, longest))
    _check_whole("prompt_lookup_min", shortest, 1, longest)
    return Speculation(tokens, longest, shortest)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    try:
        whole(name, value, low, high)
    except ConfigError as error:
        raise ConfigError(f"{SPECULATION}: {error}") from None


def _check_method(given: dict[str, Any]) -> None:
    """Raises where anything but prompt lookup is requested."""
    model, method = given.get("model"), given.get("method")
    if method is None:
        method = "ngram" if model in (None, "ngram", "[ngram]") else "draft_model"
    if method not in METHODS:
        hint = nearest(str(method), METHODS)
        raise ConfigError(
            f"{SPECULATION}: method = {shown(method)} is not valid; allowed: ngram{hint}"
        )
    if method != "ngram":
        tokens = given.get("num_speculative_tokens", 4)
        of = f" (model = {shown(model)})" if model is not None else ""
        raise ConfigError(
            f"{SPECULATION}: method = {method!r}{of} is not supported yet; leave it out, or use "
            f'{{"method": "ngram", "num_speculative_tokens": {tokens}}}, '
            "which drafts from the prompt"
        )
