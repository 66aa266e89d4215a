"""What a job will need: bytes of memory at its peak, and of disk.

Invariant: every array that is as large as a layer, the calibration or a matrix outside of layers is
counted.
"""

from dataclasses import dataclass
from math import prod

from flyweight.describe import ModelDescription
from flyweight.plan.machine import measure_resident
from flyweight.quantize.assignment import Assignment
from flyweight.quantize.tensors import split_layers
from flyweight.spec import ModelSpec, SlotPlan
from flyweight.wire import I32

STEP = 2048  # tokens computed at once
MAPPING = 64 << 20  # bytes that a backend takes at once for packed weights
ROWS = 64  # whose predictions are made at once while types are chosen
SCORED, MOST_SCORED = 512, 2048  # rows whose predictions are compared: at least, at most
HEAD_WORK = 1e9  # of the head for them: rows times its weights, about
PART = 16 << 20  # bytes of rows that are read at once, and what becomes of them
FLOAT = 4


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """`memory` by what it is for, at the peak; `disk` of the output."""

    memory: dict[str, int]
    disk: int
    input: int

    @property
    def peak(self) -> int:
        return sum(self.memory.values())


def estimate(
    found: ModelDescription, assignment: Assignment, windows: I32 | None, needs: str
) -> JobNeeds:
    top, layers = split_layers(found.plan, len(found.spec.layers))
    layer = max(map(_count_elements, layers))
    memory = {"held already (Python, libraries, tokenizer)": measure_resident()}
    widest = max(prod(slot.shape) for x in layers for slot in x)
    if windows is not None:
        memory["one layer in float32"] = FLOAT * layer
    memory["a matrix while it is quantised"] = 2 * FLOAT * widest
    memory["matrices outside of layers"] = PART + sum(_count_codes(x, assignment) for x in top)
    if windows is not None and needs:
        memory["hidden states of the calibration"] = FLOAT * windows.size * found.spec.hidden
        memory["layers to compute with"] = 2 * max(MAPPING, FLOAT * layer)
        columns = [slot.shape[1] for slot in max(layers, key=_count_grams) if len(slot.shape) == 2]
        if needs == "gram":
            memory["Hessians of a layer"] = FLOAT * sum(k * k for k in columns)
            memory["a Hessian while it is inverted"] = 24 * max(columns) ** 2
        wide = max(slot.shape[0] for x in layers for slot in x if len(slot.shape) == 2)
        memory["arrays of a step"] = 4 * FLOAT * min(STEP, windows.size) * wide
    disk = sum(entry.nbytes for entry in assignment.entries)
    source = sum(_count_bytes(slot) for slot in found.plan.slots)
    return JobNeeds(memory, disk, source)


def estimate_choice(found: ModelDescription, sample: I32, size: int) -> int:
    """Bytes of memory at the peak while types are chosen on the windows `sample`: the model is held
    as a whole, in floats of `size` bytes.
    """
    spec, slots = found.spec, found.plan.slots
    matrices = [slot.shape for slot in slots if len(slot.shape) == 2]
    tied = size * spec.vocab * spec.hidden  # an embedding that is the head too is packed for it
    widest = max(map(prod, matrices))
    rows = min(count_scored(spec), sample.size) + 4 * ROWS
    return sum(
        (
            measure_resident(),
            size * sum(prod(slot.shape) for slot in slots) + tied,
            2 * MAPPING,
            5 * FLOAT * widest,  # a matrix, its codes, what they round to, and what is packed of it
            FLOAT * sample.size * spec.hidden * (len(spec.layers) + 2),
            FLOAT * spec.vocab * rows,
            4 * FLOAT * min(STEP, sample.size) * max(shape[0] for shape in matrices[1:]),
        )
    )


def count_scored(spec: ModelSpec) -> int:
    """Rows whose predictions are compared, at most: fewer for a larger head."""
    return int(min(MOST_SCORED, max(SCORED, HEAD_WORK / (spec.hidden * spec.vocab))))


def _count_codes(slot: SlotPlan, assignment: Assignment) -> int:
    """Bytes of the codes of a matrix outside of layers, which are put together before they are
    written.
    """
    pieces = assignment.rows.get(slot.name, ())
    coded = any(assignment.precision[piece.tensor].quantised for piece in pieces)
    return 2 * prod(slot.shape) if coded else 0


def _count_elements(slots: list[SlotPlan]) -> int:
    return sum(prod(slot.shape) for slot in slots)


def _count_grams(slots: list[SlotPlan]) -> int:
    return sum(slot.shape[1] ** 2 for slot in slots if len(slot.shape) == 2)


def _count_bytes(slot: SlotPlan) -> int:
    return FLOAT * prod(slot.shape)
