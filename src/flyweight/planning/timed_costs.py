"""Costs of steps with their spread: timed several times here, read from a file, or of published
limits.

Invariant: costs that were saved are read back as they were, so what is computed from them repeats
on any machine.  What a file holds is checked.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from flyweight.errors import CheckpointError, ConfigError
from flyweight.plan.roofline import Shape, StepShape, sum_work
from flyweight.planning.calibration import LocalEngine, describe_part, make_part
from flyweight.planning.devices import Device
from flyweight.planning.loop_cost import LoopCost, measure_loop
from flyweight.planning.outline import ModelOutline
from flyweight.planning.predict import describe_device, read_limits
from flyweight.planning.queueing import Cost
from flyweight.planning.step_cost import CostLine, StepCostModel, fit_steps
from flyweight.validation.untrusted import read_json, shown

ROUNDS, QUIET = 7, 4
DEVICE_HIGH = 2.0  # times the ceiling's time: half of it reached
MOST_POINTS = 1000


@dataclass(frozen=True, slots=True)
class TimedCosts:
    """Seconds of a step by its shape; in single rounds, steps took `low` to `high` times as long.
    `note` says how this is known.
    """

    compute: Cost
    low: float
    high: float
    note: str

    def scale(self, factor: float) -> Cost:
        return lambda seen: factor * self.compute(seen)


def time_costs(
    outline: ModelOutline,
    engine: LocalEngine,
    sizes: tuple[int, int, int],
    report: Callable[[int], None],
) -> tuple[StepCostModel, TimedCosts]:
    """The median of the quieter ones of several rounds, each of which times all steps: other work
    of the machine only adds time.  `report` gets the rounds that are over.  Raises `ConfigError`
    for what cannot be timed.
    """
    part, loop = make_part(outline, engine), measure_loop()
    rounds = list[StepCostModel]()
    for number in range(ROUNDS):
        report(number)
        rounds.append(fit_steps(part.measure_layers, part.measure_head, loop, sizes))
    first = rounds[0]
    quiet = sorted(rounds, key=lambda one: one.measure_drift(first))[:QUIET]
    costs = take_median(quiet)
    drifts = [one.measure_drift(costs) for one in quiet]
    return costs, TimedCosts(
        costs.compute_seconds, min(1.0, *drifts), max(1.0, *drifts),
        f"Costs of steps: the median of the {QUIET} quietest of {ROUNDS} rounds; "
        + describe_part(part, loop),
    )  # fmt: skip


def take_median(rounds: Sequence[StepCostModel]) -> StepCostModel:
    """Of every value that was timed."""

    def line(lines: Sequence[CostLine]) -> CostLine:
        values = zip(*(one.seconds for one in lines), strict=True)
        return CostLine(lines[0].at, tuple(median(column) for column in values))

    return StepCostModel(
        line([one.layers for one in rounds]), line([one.head for one in rounds]),
        median(one.position for one in rounds), median(one.pair for one in rounds),
        LoopCost(median(one.loop.step for one in rounds),
                 median(one.loop.sequence for one in rounds)),
    )  # fmt: skip


def make_device_costs(device: Device, shape: Shape) -> TimedCosts:
    """The least times that published limits allow; half of that speed is the slow end.  Raises
    `ConfigError`.
    """
    if device.bf16_tflops is None:
        raise ConfigError("has no published peak", "device", value=device.name,
                          hint="nearest valid: h100-80")  # fmt: skip
    limits = read_limits(device)

    def compute(seen: StepShape) -> float:
        return sum_work(shape, [seen], limits).seconds

    note = (
        f"{describe_device(device)} Steps take the least time that these allow, which no kernel "
        "reaches; at worst they take twice as long."
    )
    return TimedCosts(compute, 1.0, DEVICE_HIGH, note)


def save_costs(file: Path, model: str, costs: StepCostModel, timed: TimedCosts) -> None:
    """Raises `ConfigError` where the file cannot be written."""
    held = {"model": model, **asdict(costs), "low": timed.low, "high": timed.high}
    text = json.dumps({**held, "note": timed.note}, indent=1)
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror}", "costs", value=str(file)
        ) from None


def read_costs(file: Path, model: str) -> TimedCosts:
    """Raises `ConfigError` for a file that is damaged, or of another model."""
    try:
        found = read_json(file)
    except CheckpointError as error:
        raise ConfigError(f"costs {error}") from None
    if found.get("model") != model:
        raise ConfigError(f"has costs of {shown(found.get('model'))}, not of {model}", "costs",
                          value=str(file))  # fmt: skip
    try:
        loop = found["loop"]
        costs = StepCostModel(
            _read_line(found["layers"]), _read_line(found["head"]), _read_number(found["position"]),
            _read_number(found["pair"]),
            LoopCost(_read_number(loop["step"]), _read_number(loop["sequence"])),
        )  # fmt: skip
        low, high = _read_number(found["low"]), _read_number(found["high"])
        if not 0 < low <= 1 <= high:
            raise ValueError("low and high")
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"holds no costs of steps: {error} is not valid", "costs",
                          value=str(file)) from None  # fmt: skip
    return TimedCosts(costs.compute_seconds, low, high, f"Costs of steps are those of {file}.")


def _read_line(found: dict[str, Any]) -> CostLine:
    at, seconds = (tuple(map(_read_number, found[key])) for key in ("at", "seconds"))
    rising = all(a < b for a, b in pairwise(at))
    if len(at) != len(seconds) or not 0 < len(at) <= MOST_POINTS or not rising or at[-1] == 0:
        raise ValueError("a line of at and seconds")
    return CostLine(at, seconds)


def _read_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(shown(value))
    if value < 0:
        raise ValueError(shown(value))
    return float(value)
