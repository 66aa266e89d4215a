"""The files of a model that a tuning chooses from: what predictions need of each, made or not.

Invariant: reads headers alone; a file that is not made yet has the kinds that its recipe gives.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flyweight.config import Settings
from flyweight.describe import ModelDescription, check_quality, describe, find
from flyweight.passport import UNKNOWN, Quality
from flyweight.plan.memory import SlotKinds
from flyweight.plan.roofline import Shape, make_shape
from flyweight.planning.speed import make_planned_shape
from flyweight.quantize.assignment import Assignment, list_quantised
from flyweight.spec import KV_TYPES, ModelSpec, WeightPlan
from flyweight.text.absent import load_any_tokenizer
from flyweight.weights.formats import FORMATS
from flyweight.weights.load import list_slot_kinds


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """`kinds` are what its weights are packed as; `make_shape` takes the types of activations and
    of stored K/V.  `quality` is None of a file that is not made yet; one in `full` precision is
    what losses are measured from.  `obstacle` is why the file cannot be used, "" where it can.
    """

    spec: ModelSpec
    kinds: SlotKinds
    make_shape: Callable[[str, str], Shape]
    quality: Quality | None = None
    full: bool = False
    obstacle: str = ""

    def is_exempt(self, settings: Settings) -> bool:
        """Whether no loss is to be checked: there is none, or none is known before it is made."""
        kind = KV_TYPES.get(settings.kv_cache_dtype)
        coded = kind is not None and kind.coded
        return self.quality is None or (self.full and self.quality == UNKNOWN and not coded)

    def check_loss(self, settings: Settings) -> None:
        """Raises `ConfigError` where the loss is above `max_kld` or unknown."""
        if self.quality is not None and not self.is_exempt(settings):
            check_quality(settings, self.quality)


def read_candidate(settings: Settings) -> CandidateFile:
    """Of a model that is there.  Raises `FlyweightError`."""
    return view_candidate(describe(find(settings), {}, load_any_tokenizer))


def view_candidate(found: ModelDescription) -> CandidateFile:
    def shape(activations: str, kv_dtype: str) -> Shape:
        return make_shape(found.checkpoint, found.plan, found.spec, activations, kv_dtype)

    return CandidateFile(
        found.spec,
        list_slot_kinds(found.checkpoint, found.plan),
        shape,
        found.quality,
        full=not list_quantised(found.checkpoint, found.plan),
    )


def foresee_candidate(found: ModelDescription, assignment: Assignment) -> CandidateFile:
    """Of a file that a job would make of a model."""
    kinds = list_assigned_kinds(found.plan, assignment)

    def shape(activations: str, kv_dtype: str) -> Shape:
        return make_planned_shape(found.spec, kinds, activations, kv_dtype, count_bytes)

    packed = {
        slot: [(axes, FORMATS[kind].packed) for axes, kind in parts]
        for slot, parts in kinds.items()
    }
    return CandidateFile(found.spec, packed, shape)


def list_assigned_kinds(
    plan: WeightPlan, assignment: Assignment
) -> dict[str, list[tuple[tuple[int, ...], str]]]:
    """The matrices of each slot in the kind they are written in; vectors are loaded as float32."""
    found: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for slot in plan.slots:
        if slot.kind == "vector":
            found[slot.name] = [(slot.shape, "f32")]
            continue
        runs: list[tuple[int, str]] = []  # rows that follow each other in one kind
        for piece in assignment.rows[slot.name]:
            wanted = assignment.precision[piece.tensor]
            kind = wanted.type if wanted.quantised else assignment.kinds[piece.tensor]
            before = runs.pop()[0] if runs and runs[-1][1] == kind else 0
            runs.append((before + piece.rows, kind))
        found[slot.name] = [((rows, slot.shape[1]), kind) for rows, kind in runs]
    return found


def count_bytes(shape: tuple[int, int], kind: str) -> int:
    return FORMATS[kind].count_bytes(shape)
