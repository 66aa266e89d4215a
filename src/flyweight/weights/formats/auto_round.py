"""AutoRound's folders (Intel; Cheng et al., 2023): GPTQ's or AWQ's layout, as `packing_format`
says.  Its own packing is GPTQ's with zero points as they are.

Invariant: where `extra_config` has modules of other bits or groups, the shapes say which.
"""

from collections.abc import Mapping
from typing import Any

from flyweight.weights.formats import awq, gptq
from flyweight.weights.formats.claims import Claim, Folder

VERSIONS = {  # of GPTQ's zero points
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
}
AWQ = "auto_round:auto_awq"
MODULES = "extra_config"
WIDE = 16  # bits of what is not quantised


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder, by the name of its weight."""
    folder.choose("data_type", ("int",), "int")
    extra = folder.read_object(MODULES)
    packing = folder.choose("packing_format", (*VERSIONS, AWQ), "auto_round:auto_gptq")
    if packing == AWQ:
        held = {key: folder.config.get(key) for key in ("bits", "group_size")}
        return awq.claim(Folder(held, folder.tensors, folder.where))
    held = {
        "bits": folder.config.get("bits"),
        "group_size": folder.config.get("group_size", -1),
        "sym": folder.config.get("sym"),
        "checkpoint_format": VERSIONS[packing],
        MODULES: {name: given for name, given in extra.items() if not _is_left_out(given)},
    }
    return gptq.claim(Folder(held, folder.tensors, folder.where), MODULES)


def _is_left_out(given: Any) -> bool:
    """Whether a module of `extra_config` is not quantised."""
    bits = given.get("bits") if isinstance(given, Mapping) else None
    return isinstance(bits, int) and bits >= WIDE
