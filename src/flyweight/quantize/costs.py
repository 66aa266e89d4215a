"""The costs of matrices by type, measured once each: what an interrupted choice measured is taken
from its measurements.

Invariant: the results are those of `SensitivityRun`; it is made, and a choice applied to it, only
where a measurement is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from flyweight.quantize.measurements import Key, MeasurementStore
from flyweight.quantize.tensors import TensorRows
from flyweight.weights.formats import FORMATS

Report = Callable[[str, int, int], None]
Candidates = Mapping[str, Sequence[str]]  # types by tensor
Types = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TypeCost:
    """A tensor in one type: bytes, and the mean divergence in nats a token with it alone."""

    kind: str
    nbytes: int
    divergence: float


class DivergenceRun(Protocol):
    """A model whose matrices can be put in types (`sensitivity.SensitivityRun`)."""

    def measure(self, slot: str, tensor: str, kind: str) -> float: ...
    def apply(self, types: Types) -> float: ...


class CostMeter:
    """Measures with the run that `make` makes; `known` has what was measured, and gets the rest."""

    def __init__(
        self,
        make: Callable[[], DivergenceRun],
        rows: Mapping[str, Sequence[TensorRows]],
        known: MeasurementStore,
    ) -> None:
        self._make, self._rows, self._known = make, rows, known
        self._run: DivergenceRun | None = None
        self._types: Types = {}  # of the model that is measured
        self._applied: Types = {}  # of the run

    def measure(self, candidates: Candidates, report: Report) -> dict[str, list[TypeCost]]:
        """The costs of every tensor in each of its types."""
        wanted = [
            (slot, piece, kind)
            for slot, pieces in self._rows.items()
            for piece in pieces
            for kind in candidates.get(piece.tensor, ())
        ]
        around = name_types(self._types)
        keys: list[Key] = [(around, slot, piece.tensor, kind) for slot, piece, kind in wanted]
        missing = [key for key in keys if self._known.get(key) is None]
        for done, key in enumerate(missing):
            _, slot, tensor, kind = key
            run = self._prepare_run()
            report(f"sensitivity of {tensor}", done, len(missing))
            self._known[key] = run.measure(slot, tensor, kind)
        found: dict[str, list[TypeCost]] = {name: [] for name in candidates}
        for key, (_, piece, kind) in zip(keys, wanted, strict=True):
            divergence = self._known.get(key)
            assert divergence is not None
            nbytes = FORMATS[kind].count_bytes(piece.shape)
            found[piece.tensor].append(TypeCost(kind, nbytes, divergence))
        return found

    def apply(self, types: Types) -> float:
        """The divergence with all these types at once.  What is measured from then on has them."""
        self._types = dict(types)
        key = (name_types(types),)
        found = self._known.get(key)
        if found is None:
            found = self._apply_to(self._find_run())
            self._known[key] = found
        return found

    def _prepare_run(self) -> DivergenceRun:
        """The run, with the types of the model that is measured."""
        run = self._find_run()
        if self._applied != self._types:
            self._apply_to(run)
        return run

    def _apply_to(self, run: DivergenceRun) -> float:
        self._applied = self._types
        return run.apply(self._types)

    def _find_run(self) -> DivergenceRun:
        if self._run is None:
            self._run = self._make()
        return self._run


def name_types(types: Types) -> str:
    """A hash of a choice; "" where nothing is chosen yet."""
    return sha256(repr(sorted(types.items())).encode()).hexdigest()[:32] if types else ""
