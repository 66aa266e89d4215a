"""What backends check of the parts that a weight is packed from.

Invariant: a part is refused by what it is, the same way by every backend.  Knows no kernels.
"""

from flyweight.errors import CheckpointError
from flyweight.ops.base import DENSE_KINDS, Part
from flyweight.ops.grouped import BASES, LAYOUTS, BlockRows, GroupedWeight, count_block


def find_part_kind(part: Part) -> str:
    """The packed kind of a part; raises CheckpointError where no kernel reads it."""
    if isinstance(part, BlockRows):
        return part.kind
    if not isinstance(part, GroupedWeight):
        kind = DENSE_KINDS.get(part.dtype.name)
        if kind is None or part.ndim != 2:
            known = ", ".join(DENSE_KINDS)
            raise CheckpointError(
                f"dense weight of {part.dtype}, {part.ndim} axes; known: 2 axes of {known}"
            )
        return kind
    if not part.kind:
        known = ", ".join((*LAYOUTS, *BASES))
        raise CheckpointError(f"quantised weight of {part.layout} has no kernel; known: {known}")
    return part.kind


def check_columns(shape: tuple[int, int], kind: str) -> None:
    block = count_block(kind)
    if shape[1] % block:
        raise CheckpointError(
            f"{kind} weight with {shape[1]} columns; must be a multiple of {block}"
        )
