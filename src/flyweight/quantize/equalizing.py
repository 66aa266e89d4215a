"""Methods that move scales between a layer's matrices before they are rounded: AWQ and SmoothQuant.

Invariant: a layer computes what it did (`folds`), except for rounding; statistics of inputs are
changed along with the inputs.
"""

from collections.abc import Callable

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.awq import clip_rows, divide_gram, search_clips, search_scales
from flyweight.quantize.folds import Fold
from flyweight.quantize.method import Inputs, MethodSettings
from flyweight.quantize.precision import Precision
from flyweight.quantize.rounding import round_rows
from flyweight.quantize.smoothquant import ALPHA, compute_scales
from flyweight.quantize.static import find_input_scale, round_rows_to_int8, search_channel_scales
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.work import LayerWeights
from flyweight.wire import F32

UNROUNDED = ("router", "shared_gate")


class Awq:
    """Activation-aware scales and clips (`awq`)."""

    def __init__(self, settings: MethodSettings) -> None: ...

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None:
        for fold in layer.folds:
            seen = find_widest(fold, inputs)
            if seen is None or not layer.precision.quantised:
                continue
            group = list_read(fold, layer)
            trip = make_round_trip(layer.precision)
            scales = search_scales(group, seen.gram, seen.sums, trip, fold.tie)
            apply_scales(fold, scales, layer, inputs)

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        if inputs is None:
            return round_rows(rows, precision)
        group = precision.count_group(rows.shape[1])
        factors = search_clips(rows, inputs.gram, make_round_trip(precision), group)
        return round_rows(clip_rows(rows, factors), precision)


class SmoothQuant:
    """Outliers of activations moved into int8 weights (`smoothquant`)."""

    def __init__(self, settings: MethodSettings) -> None:
        self.alpha = ALPHA if settings.alpha is None else settings.alpha

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None:
        for fold in layer.folds:
            seen = find_widest(fold, inputs)
            if seen is not None:
                scales = compute_scales(list_read(fold, layer), seen.most, self.alpha, fold.tie)
                apply_scales(fold, scales, layer, inputs)

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        return round_rows_to_int8(rows)


class Int8Rows:
    """int8 rows for activations that are rounded by scales of their own."""

    def __init__(self, settings: MethodSettings) -> None: ...

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None: ...

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        return round_rows_to_int8(rows)


class StaticInt8:
    """int8 rows for inputs with one calibrated scale after a norm, and a scale a token elsewhere
    (`LayerChoice`).  As one scale serves all channels, outliers move into the weights, by `alpha`
    or by what costs least.
    """

    def __init__(self, settings: MethodSettings) -> None:
        self.alpha = settings.alpha

    def prepare(self, layer: LayerWeights, inputs: Inputs) -> None:
        for fold in layer.folds:
            seen = find_widest(fold, inputs)
            if seen is None or not all(name in layer.vectors for name in fold.into):
                continue
            group = list_read(fold, layer)
            if self.alpha is None:
                scales = search_channel_scales(group, seen, fold.tie)
            else:
                scales = compute_scales(group, seen.most, self.alpha, fold.tie)
            apply_scales(fold, scales, layer, inputs)

    def round(
        self, slot: str, rows: F32, precision: Precision, inputs: InputStatistics | None
    ) -> GroupedWeight:
        if precision.activations != "static":
            return round_rows_to_int8(rows)
        assert inputs is not None, "static scales are calibrated"
        sample = np.concatenate(inputs.sample)
        return round_rows_to_int8(rows, find_input_scale(rows, sample, float(inputs.most.max())))


def list_read(fold: Fold, layer: LayerWeights) -> list[F32]:
    """The matrices that read a fold's channels, except for those that stay in floats."""
    return [layer.matrices[name] for name in fold.readers if not name.endswith(UNROUNDED)]


def find_widest(fold: Fold, inputs: Inputs) -> InputStatistics | None:
    """The statistics of a fold's readers that have seen most rows; none where none did."""
    seen = [inputs[reader] for reader in fold.readers if reader in inputs]
    return max(seen, key=lambda one: one.count, default=None)


def apply_scales(fold: Fold, scales: F32, layer: LayerWeights, inputs: Inputs) -> None:
    """Folds scales into a layer, and divides what is known of the readers' inputs by them."""
    fold.apply(scales, layer.matrices, layer.biases, layer.vectors)
    for reader in fold.readers:
        if reader in inputs:
            own = inputs[reader]
            if own.gram.size:
                own.gram = divide_gram(own.gram, scales)
            own.sums = own.sums / scales
            own.most = own.most / scales
            own.sample = [rows / scales for rows in own.sample]


def make_round_trip(precision: Precision) -> Callable[[F32], F32]:
    """Rows to what their codes represent."""

    def trip(rows: F32) -> F32:
        return round_rows(np.ascontiguousarray(rows), precision).dequantize()

    return trip
