"""What a model file is, for a row of results: its name, kind, bytes and parameters."""

import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from flyweight.describe import ModelDescription
from flyweight.weights.formats import FORMATS


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`name` is the file's with its folder's before it, `kind` a short description."""

    name: str
    kind: str
    nbytes: int
    params: int

    @classmethod
    def of(cls, found: ModelDescription) -> "ModelFacts":
        tensors = [t for t in found.checkpoint.tensors.values() if t.kind in FORMATS]
        params = sum(math.prod(t.shape) for t in tensors)
        weights: Counter[str] = Counter()
        for tensor in tensors:
            if len(tensor.shape) > 1:
                weights[tensor.kind] += math.prod(tensor.shape)
        most = weights.most_common(1)[0][0].upper() if weights else ""
        path = found.checkpoint.path
        return cls(
            file_name(path), f"{found.spec.family} {people(params)} {most}", size(path), params
        )


def file_name(path: Path) -> str:
    return "/".join(Path(os.path.abspath(path)).parts[-2:]).strip("/")


def size(path: Path) -> int:
    """Bytes of a model's file, or of the weights in its folder."""
    if path.is_file():
        return path.stat().st_size
    kinds = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
    files = next((files for kind in kinds if (files := [*path.glob(kind)])), [])
    return sum(file.stat().st_size for file in files)


def people(params: int) -> str:
    """1.24B, 596M, 260K."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if params >= unit:
            return f"{params / unit:.3g}{name}"
    return str(params)
