"""A model in a few words: family, parameters, types of weights.  No tensor is read."""

from collections import Counter
from dataclasses import dataclass
from math import prod

from flyweight.describe import ModelDescription, describe_kernels
from flyweight.passport import UNKNOWN, Quality

MINOR = 0.01  # of the parameters: kinds below it are not worth a word


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """`kinds` are the types of the weights, the most frequent first; `context` is the context that
    the model was trained for.  `method` is how a folder is quantised, "" where it is not; `opened`
    of its matrices are kept as bfloat16, as no kernel reads their codes.  `quality` is what its
    passport says.
    """

    family: str
    parameters: int
    kinds: tuple[str, ...]
    context: int
    format: str
    method: str = ""
    opened: int = 0
    quality: Quality = UNKNOWN

    @property
    def quantisation(self) -> str:
        first, *others = self.kinds
        return first + (f" (and {', '.join(others)})" if others else "")

    @property
    def stored(self) -> str:
        """The types of the weights, and how many matrices no kernel reads as the file has them."""
        opened = f"; {describe_kernels(self.opened)}" if self.opened else ""
        return f"{self.quantisation}{opened}"

    @property
    def size(self) -> str:
        """The number of parameters in words: 752 M, 1.2 B."""
        for scale, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
            if self.parameters >= scale:
                return f"{self.parameters / scale:.3g} {unit}"
        return str(self.parameters)


def summarize_model(found: ModelDescription) -> ModelSummary:
    tensors = found.checkpoint.tensors
    used = {source.tensor for slot in found.plan.slots for source in slot.sources}
    sizes: Counter[str] = Counter()
    for name in used:
        sizes[tensors[name].kind] += prod(tensors[name].shape)
    total = sizes.total()
    kinds = [kind for kind, many in sizes.most_common() if many >= MINOR * total]
    return ModelSummary(
        family=found.spec.family,
        parameters=total,
        kinds=tuple(kind.upper() for kind in kinds),
        context=found.spec.context,
        format=found.checkpoint.format,
        method=found.checkpoint.quantisation,
        opened=found.checkpoint.opened,
        quality=found.quality,
    )
