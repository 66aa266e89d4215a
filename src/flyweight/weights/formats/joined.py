"""The formats of several tensors a matrix, by the names that `quantization_config.quant_method` has
for them.

Invariant: no tensor belongs to two matrices, and no matrix is present twice.  A format's file is
imported when a model of it is read.
"""

from collections.abc import Mapping
from importlib import import_module

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import shown
from flyweight.weights.formats.claims import Claim, Folder
from flyweight.weights.tensorinfo import TensorInfo

# quant_method -> the file next to this one whose `claim` reads it.
METHODS = {
    "auto-round": "auto_round",
    "awq": "awq",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed",
    "fbgemm_fp8": "fp8",
    "fp8": "fp8",
    "gptq": "gptq",
    "hqq": "hqq",
    "intel/auto-round": "auto_round",
    "modelopt": "modelopt",
    "modelopt_fp4": "modelopt",
    "mxfp4": "mxfp4",
    "torchao": "torchao",
}


# How tensors are named that need no config: HQQ's, which hqq itself writes without one.
UNSAID = {".W_q": "hqq"}
# How tensors are named that mean nothing without a config, and the methods that name them so.
SAID = {
    ".qweight": "gptq or awq",
    ".weight_packed": "compressed-tensors",
    ".SCB": "bitsandbytes",
    ".quant_state.bitsandbytes__nf4": "bitsandbytes",
    ".quant_state.bitsandbytes__fp4": "bitsandbytes",
}


def find_method(folder: Folder) -> str:
    """The config's method; without a config what the tensors' names say, or else mxfp4, whose pairs
    need none.
    """
    if folder.config:
        return str(folder.config.get("quant_method"))
    for end, methods in SAID.items():
        for stem in folder.list_stems(end):
            what = f"{folder.where}: tensor {shown(stem + end)}"
            raise CheckpointError(
                f"{what} is of a matrix quantised as {methods}; "
                "config.json has no quantization_config, and there is no quantize_config.json or "
                "quant_config.json"
            )
    ends = {end for end in UNSAID for _ in folder.list_stems(end)}
    return UNSAID[ends.pop()] if ends else "mxfp4"


def claim_matrices(folder: Folder) -> dict[str, Claim]:
    """What the folder's format claims of its tensors; nothing for a method that is not in
    `METHODS`.
    """
    method = find_method(folder)
    if method not in METHODS:
        return {}
    module = import_module(f"flyweight.weights.formats.{METHODS[method]}")
    claims: dict[str, Claim] = module.claim(folder)
    if folder.config and not claims:
        folder.refuse(f"quant_method = {shown(method)}, but no tensor is in that format")
    owners: dict[str, str] = {}
    for name, one in claims.items():
        for part in one.parts.values():
            if owners.setdefault(part, name) != name:
                raise CheckpointError(
                    f"{folder.where}: tensor {shown(part)} belongs to {shown(owners[part])} and to "
                    f"{shown(name)}"
                )
    for name in claims:
        if name in folder.tensors and name not in owners:
            raise CheckpointError(
                f"{folder.where}: tensor {shown(name)} is present twice, dense and quantised"
            )
    return claims


def join_tensors(
    tensors: Mapping[str, TensorInfo], claims: Mapping[str, Claim]
) -> dict[str, TensorInfo]:
    """The tensors with those of every claim as one matrix."""
    taken = {part for claim in claims.values() for part in claim.parts.values()}
    found = {name: info for name, info in tensors.items() if name not in taken}
    return found | {n: TensorInfo(n, claim.shape, claim.kind) for n, claim in claims.items()}
