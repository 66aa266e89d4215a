"""Models that workloads need where the one inside the package is too small, written when needed.

Invariant: made from the model inside the package or from random weights, never fetched; the note of
each says that its answers mean nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flyweight.describe import ASSETS, DEFAULT_MODEL
from flyweight.quantize.ggml.container import GgufTensor, GgufWriter, read_metadata
from flyweight.weights.gguf import read_gguf

LONG_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class StandIn:
    """A model's file and what it is."""

    path: Path
    note: str


def write_long(folder: Path) -> StandIn:
    """The model inside the package, with a longer context in its metadata."""
    source = read_gguf(ASSETS / f"{DEFAULT_MODEL}.gguf")
    metadata = read_metadata(source)
    known = metadata["llama.context_length"]
    metadata["llama.context_length"] = type(known)(LONG_CONTEXT)  # type: ignore[call-arg]
    path = folder / "stories-long.gguf"
    tensors = [GgufTensor(name, one.kind, one.shape) for name, one in source.spans.items()]
    with GgufWriter(path, tensors, metadata) as out:
        for name, one in source.spans.items():
            out.write(name, source.file.copy(one.offset, one.nbytes, name))
    note = (
        f"stand-in: the model inside the package with its context of {known} raised to "
        f"{LONG_CONTEXT:,} tokens; speed does not depend on what it then writes"
    )
    return StandIn(path, note)


STAND_INS: dict[str, Callable[[Path], StandIn]] = {"long": write_long}
