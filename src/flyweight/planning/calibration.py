"""Times steps of a model on this machine without loading it.

Invariant: nothing of the model is read but its outline; what was timed is said in words.
"""

from dataclasses import dataclass

from flyweight.backends import choose_backend
from flyweight.bench.limits import LimitSampler
from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.ops.cpu import CpuOps
from flyweight.plan.machine import read_machine
from flyweight.plan.roofline import Shape, StepShape
from flyweight.planning.loop_cost import LoopCost, measure_loop
from flyweight.planning.outline import ModelOutline
from flyweight.planning.partial import ModelShape, PartialModel
from flyweight.planning.speed import Timer, make_planned_shape
from flyweight.planning.step_cost import StepCostModel, fit_steps


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """What this machine would run a model with."""

    ops: CpuOps
    kv_dtype: str
    shape: Shape
    context: int  # tokens that the model was made for

    @classmethod
    def of(cls, settings: Settings, outline: ModelOutline) -> "LocalEngine":
        ops = choose_backend(settings, read_machine().cores)
        assert isinstance(ops, CpuOps), "the CPU backend"
        auto = settings.kv_cache_dtype == "auto"
        kv_dtype = ops.kv_dtype if auto else settings.kv_cache_dtype
        shape = make_planned_shape(
            outline.spec, outline.kinds, ops.activations, kv_dtype, ops.count_packed_bytes
        )
        return cls(ops, kv_dtype, shape, outline.spec.context)

    @property
    def weight_bytes(self) -> int:
        return sum(matrix.nbytes * times for matrix, times in self.shape.matrices)

    def make_sampler(self) -> LimitSampler:
        return LimitSampler(self.ops.threads, self.ops.isa, self.weight_bytes)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How steps are timed without the model (None: they cannot be), and how that was done."""

    timer: Timer | None
    note: str


def calibrate(outline: ModelOutline, engine: LocalEngine) -> Calibration:
    """Part of the model, and the engine's loop around it."""
    try:
        part = make_part(outline, engine)
    except ConfigError as error:
        return Calibration(None, f"Nothing is expected: {error}.")
    loop = measure_loop()

    def time_step(seen: StepShape) -> float:
        return part.measure(seen) + loop.compute_seconds(len(seen.chunks))

    return Calibration(time_step, "Expected: " + describe_part(part, loop))


def calibrate_steps(
    outline: ModelOutline, engine: LocalEngine, sizes: tuple[int, int, int]
) -> tuple[StepCostModel, str]:
    """A cost model of steps; `sizes` are the most sequences and tokens of one, and the longest
    context.  Raises `ConfigError` for what cannot be timed.
    """
    part, loop = make_part(outline, engine), measure_loop()
    costs = fit_steps(part.measure_layers, part.measure_head, loop, sizes)
    return costs, "Costs of steps: " + describe_part(part, loop)


def check_positions(outline: ModelOutline, **asked: int) -> None:
    """Raises `ConfigError` for more positions than a model has learned; others may go beyond what
    they were made for.
    """
    for name, value in asked.items():
        if 0 < outline.spec.positions < value:
            raise ConfigError(
                f"is above the {outline.spec.positions} positions this model has learned",
                name,
                value=value,
                hint=f"nearest valid: {outline.spec.positions}",
            )


def require_files(outline: ModelOutline, option: str) -> None:
    """Raises `ConfigError` where there is nothing to load."""
    if outline.path is None:
        raise ConfigError(
            f"loads the model, and of {outline.name} there is only {outline.basis}; leave it out, "
            "or give a model with its weights",
            option,
        )


def make_part(outline: ModelOutline, engine: LocalEngine) -> PartialModel:
    shape = ModelShape(outline.spec, outline.plan, outline.kinds)
    return PartialModel(shape, engine.ops, engine.kv_dtype)


def describe_part(part: PartialModel, loop: LoopCost) -> str:
    """What was timed."""
    return (
        f"{part.layers} of {len(part.whole.layers)} layers and {part.rows} of "
        f"{part.whole.vocab} rows of the head, with made-up weights, timed here and scaled; the "
        f"engine's own loop takes {1e6 * loop.step:.0f} us a step and "
        f"{1e6 * loop.sequence:.1f} us a sequence."
    )
