"""Times every op of a forward pass: an op table around another.

Invariant: passes every call on unchanged, so the bits are those of the table inside; layers run in
the finer ops, one call each, in place of one native call for all of them.  Knows no costs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyweight.ops.base import Ops
from flyweight.ops.stack import Layer, SteppedStack

# Ops that are timed; the others arrange arrays and cost next to nothing.
TIMED = frozenset(
    (
        "embed", "norm", "add_norm", "layer_norm", "layer_norm_heads", "linear", "linear_heads",
        "rotation", "rope_store", "attend", "act", "activate", "add", "scale", "scale_rows",
        "softcap", "gate", "concat", "route", "experts", "take", "sample",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call: its op, the weight slot it used ("" without one), the layer whose K/V it used (-1
    without), the shapes of its first array and of its result.
    """

    op: str
    slot: str
    layer: int
    given: tuple[int, ...]
    result: tuple[int, ...]
    seconds: float


class OpMeter:
    """An op table that keeps an `OpCall` for each timed call.  `names` are slots by the identity of
    their weights, `layers` numbers by that of their K/V.
    """

    def __init__(self, inner: Ops, weights: Mapping[str, Any], kv: Sequence[object]) -> None:
        self.inner = inner
        self.calls: list[OpCall] = []
        self._slots = {id(weight): slot for slot, weight in weights.items()}
        self._layers = {id(layer): i for i, layer in enumerate(kv)}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._time(name, found) if name in TIMED else found

    def stack(self, layers: Sequence[Layer]) -> SteppedStack:
        return SteppedStack(layers)

    def take_calls(self) -> list[OpCall]:
        """What was called since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def _time(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = op(*given, **named)
            seconds = time.perf_counter() - start
            slot, layer = self._find_operands([*given, *named.values()])
            arrays = [one for one in given if isinstance(one, np.ndarray)]
            shapes = _read_shape(arrays[0] if arrays else None), _read_shape(result)
            self.calls.append(OpCall(name, slot, layer, *shapes, seconds))
            return result

        return call

    def _find_operands(self, given: Sequence[Any]) -> tuple[str, int]:
        """The slot and the layer among an op's arguments; of a list of weights, the first's."""
        slot, layer = "", -1
        for one in given:
            first = one[0] if isinstance(one, list) and one else one
            slot = slot or self._slots.get(id(one), "") or self._slots.get(id(first), "")
            layer = self._layers.get(id(one), layer)
        return slot, layer


def _read_shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, np.ndarray) else ()
