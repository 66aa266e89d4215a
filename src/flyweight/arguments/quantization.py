"""`--quantization` as an object: method, type, group size and order, in camelCase or snake_case.

Invariant: each key is understood or refused by name, and keys that contradict each other are named
together.  Weights are not quantised here: what the result means is decided by the caller.
"""

import re
from typing import Any

from flyweight.arguments.objects import known, parsed
from flyweight.errors import Refusals
from flyweight.validation.untrusted import shown

OPTION = "--quantization"
NAMES = {  # keys, and the one each stands for
    "method": "method",
    "quant_method": "method",
    "type": "type",
    "bits": "bits",
    "group_size": "group_size",
    "desc_act": "desc_act",
    "act_order": "desc_act",
    "sym": "sym",
}
KINDS: dict[str, tuple[type, str]] = {
    "method": (str, "text, as GPTQ"),
    "type": (str, "text, as int4"),
    "bits": (int, "a whole number, as 4"),
    "group_size": (int, "a whole number, as 128"),
    "desc_act": (bool, "true or false"),
    "sym": (bool, "true or false"),
}
NEAR = {"int8": "Q8_0", "8": "Q8_0"}  # the GGUF type that is nearest to a type or a number of bits
FOUR_BITS = "Q4_K_M"


def method(text: str) -> str:
    """The method an object asks for: gguf, auto or none.  Raises `Refusals` for every other, and
    for keys that cannot be.
    """
    given = parsed(OPTION, text)
    snakes = {name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() for name in given}
    known(OPTION, {snakes[name]: value for name, value in given.items()}, NAMES)
    refusals: list[str] = []
    found: dict[str, Any] = {}
    first: dict[str, str] = {}  # each setting's key, as it was written
    for name, value in given.items():
        setting = NAMES[snakes[name]]
        kind, allowed = KINDS[setting]
        if value is None:
            continue
        if type(value) is not kind:
            refusals.append(f"{OPTION}: {name} = {_json(value)} is not valid; allowed: {allowed}")
        elif found.get(setting, value) != value:
            refusals.append(
                f"{OPTION}: {first[setting]} = {_json(found[setting])} and {name} = "
                f"{_json(value)} contradict each other: both set {setting}; give one of them"
            )
        else:
            found[setting] = value
            first.setdefault(setting, name)
    asked = str(found.get("method", "")).lower()
    if not any(NAMES[snakes[name]] == "method" and given[name] is not None for name in given):
        refusals.append(f"{OPTION}: method is missing; allowed: gguf, none")
    elif asked and asked not in ("gguf", "auto", "none"):
        refusals.append(_unmade(found))
    if refusals:
        raise Refusals(refusals)
    return asked


def _unmade(found: dict[str, Any]) -> str:
    size = str(found.get("type", found.get("bits", ""))).lower()
    return (
        f"{OPTION}: method = {shown(found['method'])} is not supported: weights are not "
        "quantised here, and quantised weights are read from GGUF; give a .gguf file, or a name "
        f"on the Hub with its type, as org/name:{NEAR.get(size, FOUR_BITS)}"
    )


def _json(value: Any) -> str:
    """A value as JSON has it."""
    words = {True: "true", False: "false"}
    return words[value] if isinstance(value, bool) else shown(value)
