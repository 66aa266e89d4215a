"""How much less the best mix of GGUF types can cost than one type of the same size, by the costs of
single matrices: the bound of the linear relaxation, without and with GPTQ's error feedback.

    FLYWEIGHT_DATA=DIR python bench/mixed_bound.py stories3m

A cost is the divergence with only that matrix quantised, on windows of the calibration.  Costs of
matrices do not add up exactly (docs/quantization.md, mixed precision), so this is an estimate of
what a choice can gain, not of the file's divergence.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from flyweight.config import Settings  # noqa: E402
from flyweight.describe import describe  # noqa: E402
from flyweight.ops.grouped import BlockRows, GroupedWeight  # noqa: E402
from flyweight.quantize.allocation import bound_cost  # noqa: E402
from flyweight.quantize.calibration import CalibrationText  # noqa: E402
from flyweight.quantize.costs import CostMeter, TypeCost  # noqa: E402
from flyweight.quantize.finite import read_finite_matrix  # noqa: E402
from flyweight.quantize.ggml.recipes import find_recipe  # noqa: E402
from flyweight.quantize.gguf_job import make_target  # noqa: E402
from flyweight.quantize.gptq import Gptq  # noqa: E402
from flyweight.quantize.make import cut_windows, make_backends  # noqa: E402
from flyweight.quantize.method import MethodSettings  # noqa: E402
from flyweight.quantize.mixed import cut_sample, list_matrices, list_types  # noqa: E402
from flyweight.quantize.options import QuantizeOptions  # noqa: E402
from flyweight.quantize.precision import Precision  # noqa: E402
from flyweight.quantize.sensitivity import SensitivityRun  # noqa: E402
from flyweight.quantize.statistics import InputStatistics  # noqa: E402
from flyweight.weights.formats import FORMATS  # noqa: E402
from flyweight.wire import F32  # noqa: E402
from full_models import write_stories, write_stories3m  # noqa: E402
from held_out import THREADS, split_stories  # noqa: E402

KINDS = ("q4_0", "iq4_nl", "q5_0", "q5_1")


class FeedbackRun(SensitivityRun):
    """Rounds with error feedback where a matrix has calibrated inputs: those of the full model."""

    def __init__(self, *arguments: Any) -> None:
        self._statistics: dict[str, InputStatistics] = {}
        self._method = Gptq(MethodSettings())
        super().__init__(*arguments)

    def _observe(self, i: int, weights: Mapping[str, Any]) -> None:
        super()._observe(i, weights)

        def accumulate(h: F32, x: F32) -> None:
            h += x.T @ x

        def take(slot: str, x: F32) -> None:
            new = InputStatistics(x.shape[1], accumulate)
            self._statistics.setdefault(slot, new).take(x)

        self._run.observe(i, self.ops, weights, take)

    def _round_slot(self, slot: str, types: Mapping[str, str]) -> F32:
        inputs = self._statistics.get(slot)
        if inputs is None:
            return super()._round_slot(slot, types)
        rows = read_finite_matrix(self.found.checkpoint, self._slots[slot])
        for piece in self.rows[slot]:
            if kind := types.get(piece.tensor):
                own = slice(piece.first, piece.first + piece.rows)
                made = self._method.round(slot, rows[own], Precision(type=kind), inputs)
                assert isinstance(made, BlockRows)
                parsed = FORMATS[kind].parse(made.raw, made.shape)
                assert isinstance(parsed, GroupedWeight)
                rows[own] = parsed.dequantize()
        return rows


def compare(kind: str, costs: Mapping[str, Sequence[TypeCost]], own: Sequence[TypeCost]) -> str:
    """The sum of one type's costs, and the least sum that any mix of its size can have."""
    total = sum(one.divergence for one in own)
    bound = bound_cost(costs, sum(one.nbytes for one in own))
    return f"{kind:8}{total:10.4f}{bound:10.4f}{bound / total:8.2f}"


def ignore(stage: str, done: int, total: int) -> None:
    """Shows no progress."""


def main() -> None:
    name, data = sys.argv[1], Path(os.environ["FLYWEIGHT_DATA"])
    with TemporaryDirectory() as made:
        out = Path(made)
        full = write_stories(out / name) if name == "stories" else write_stories3m(out / name, data)
        found, text = describe(full), CalibrationText.read(split_stories(data, out)[0])
        options = QuantizeOptions(type="Q4_0", weighed=True, samples=32, length=256)
        sample = cut_sample(found, cut_windows(found, options, text))
        target = make_target(found, find_recipe("Q4_0"), True)
        rows, tensors = target.assignment.rows, list_matrices(target)
        ops = make_backends(Settings.of(model=str(full), **THREADS), found, 1).floats
        for feedback, Run in (("no", SensitivityRun), ("with", FeedbackRun)):
            print(f"\n{name}, {feedback} error feedback\ntype       uniform     bound   ratio")
            meter = CostMeter(lambda Run=Run: Run(found, sample, rows, ops), rows, {})
            candidates = {key: list_types(piece.shape[-1]) for key, piece in tensors.items()}
            costs = meter.measure(candidates, lambda stage, done, total: None)
            for kind in KINDS:
                own = meter.measure(
                    dict.fromkeys(tensors, (kind,)), lambda stage, done, total: None
                )
                print(compare(kind, costs, [each[0] for each in own.values()]), flush=True)


if __name__ == "__main__":
    main()
